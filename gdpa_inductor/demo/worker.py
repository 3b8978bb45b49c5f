"""Trains the recommender under one contender, in a process of its own, and reports in JSON lines.

In: `Setting` as JSON on the command line. Out on stdout: `{"step": i, "loss": x}` per step, then
one `{"result": {...}}`, the fields of `Run`. A process each, so that memory and compile time are
its own.
"""

import copy
import dataclasses
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor, nn

from gdpa_inductor.measure import peak_extra_bytes

from . import data, metrics
from .model import Recommender

Trained = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What one run trains. `contender` is "eager" or a torch.compile backend. After `seconds` of
    training it stops short of `steps`, so that the demo ends in time on a slow machine too."""

    contender: str
    device: str
    steps: int
    batch: int
    length: int
    data: str  # path of the data file
    negatives: int = 256
    learning_rate: float = 1e-3
    seed: int = 0
    seconds: float = float("inf")


@dataclasses.dataclass
class Run:
    """What one run found. Errors are relative, against the same model and batch in fp64."""

    contender: str
    losses: list[float]
    compile_s: float
    step_ms: float
    peak_bytes: int | None
    loss_error: float
    grad_error: float
    metrics: dict[str, float]
    explained: str = ""
    matches: int = 0


def autocast(device: str) -> AbstractContextManager[None]:
    """bf16 products on a GPU, as such models are trained there; plain fp32 on a CPU."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def errors(loss: Tensor, model: nn.Module, batch: data.Batch) -> tuple[float, float]:
    """Relative error of loss, and the worst of any parameter's gradient, against eager fp64."""
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    wanted = exact(*batch.tensors())
    wanted.backward()
    have, want = gradients(model), gradients(exact)
    worst = max(((have[k] - want[k]).norm() / want[k].norm()).item() for k in want)
    return abs((loss.double() - wanted) / wanted).item(), worst


def gradient_step(forward: Trained, model: nn.Module, batch: data.Batch) -> Tensor:
    """Loss and fresh gradients; the parameters stay."""
    device = batch.history.device.type
    model.zero_grad()
    with autocast(device):
        loss = forward(*batch.tensors())
    loss.backward()
    synchronize(device)
    return loss.detach()


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def train(
    setting: Setting, forward: Trained, model: nn.Module, feed: Iterable[data.Batch]
) -> tuple[list[float], list[float]]:
    """Losses and seconds of each step; prints a line for each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.learning_rate)
    losses: list[float] = []
    seconds: list[float] = []
    for step, batch in enumerate(feed):
        start = time.perf_counter()
        optimizer.zero_grad()
        with autocast(setting.device):
            loss = forward(*batch.tensors())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        synchronize(setting.device)
        seconds.append(time.perf_counter() - start)
        print(json.dumps({"step": step + 1, "loss": losses[-1]}), flush=True)
        if sum(seconds) > setting.seconds:
            break
    return losses, seconds


def run(setting: Setting) -> Run:
    """Compiles with the first batch, compares with fp64, trains, weighs a step, ranks."""
    histories = data.load(Path(setting.data))
    torch.manual_seed(setting.seed)
    model = Recommender(histories.items, setting.length).to(setting.device)
    batches = drawn(setting, histories)
    explained, matches = explain(model, batches[0]) if setting.contender == "gdpa" else ("", 0)
    forward: Trained = model
    if setting.contender != "eager":
        forward = torch.compile(model, backend=setting.contender)

    once = functools.partial(gradient_step, forward, model, batches[0])
    start = time.perf_counter()
    loss = once()
    first_s = time.perf_counter() - start
    loss_error, grad_error = errors(loss, model, batches[0])
    losses, seconds = train(setting, forward, model, batches)
    step_s = statistics.median(seconds)
    peak = peak_extra_bytes(once, setting.device)
    with torch.no_grad():
        found = metrics.evaluate(histories, model.rank, setting.length, device=setting.device)
    return Run(
        contender=setting.contender,
        losses=losses,
        compile_s=max(first_s - step_s, 0.0),
        step_ms=step_s * 1e3,
        peak_bytes=peak,
        loss_error=loss_error,
        grad_error=grad_error,
        metrics=found,
        explained=explained,
        matches=matches,
    )


def drawn(setting: Setting, histories: data.Histories) -> list[data.Batch]:
    """The training batches on the device."""
    sizes = (setting.steps, setting.batch, setting.length, setting.negatives)
    return [batch.to(setting.device) for batch in data.batches(histories, *sizes, setting.seed)]


def explain(model: nn.Module, batch: data.Batch) -> tuple[str, int]:
    import gdpa_inductor

    with autocast(batch.history.device.type):
        report = gdpa_inductor.explain(model)(*batch.tensors())
    return str(report), len(report.matches)


if __name__ == "__main__":
    found = run(Setting(**json.loads(sys.argv[1])))
    print(json.dumps({"result": dataclasses.asdict(found)}), flush=True)
