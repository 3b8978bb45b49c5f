"""Trains the recommender under one contender, in a process of its own, and reports in JSON lines.

In: `Setting` as JSON on the command line, and on stdin a line that says until when to train. Out,
on stdout: `{"compiled": true}`, before that line is read. Then `{"step": i, "loss": x}` for each
step, and `{"result": {...}}` with the fields of `Run`, twice: after the training, and at the end.
Each contender has its own process, so that its memory is its own.
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

from benchmarks.measure import peak_extra_bytes

from . import data, metrics
from .model import Recommender

Trained = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings of a run.

    contender:      "eager", or a backend of torch.compile.
    device:         "cpu" or "cuda".
    steps:          The steps of training.
    batch:          The users of a step.
    length:         The items of a history.
    negatives:      The sampled items of a step.
    learning_rate:  The learning rate of AdamW.
    seed:           The seed of the parameters and the batches.
    seconds:        Training stops after so many seconds, even before `steps` steps.
    ranked:         The users whose held-out items are ranked; 0 for all.
    until:          It also stops at this time.time(). So the demo ends in time on a busy machine.
    """

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
    ranked: int = 0
    until: float = float("inf")


@dataclasses.dataclass
class Run:
    """The result of a run.

    losses:      The loss of each step.
    compile_s:   Seconds of the first call, without the time of a step. Contenders that compile do
                 so at the same time.
    step_ms:     The median milliseconds of a step.
    peak_bytes:  Peak memory of a forward and backward, beyond that held before. None if unknown.
    loss_error:  The relative error of the first loss, against the same model in fp64.
    grad_error:  The same of the worst gradient of a parameter, as a relative L2 distance.
    metrics:     HR@k and NDCG@k. Empty where the time did not suffice.
    explained:   The text of `gdpa_inductor.explain`. Only gdpa has it.
    matches:     The number of regions that gdpa fused.
    """

    contender: str
    losses: list[float]
    compile_s: float
    step_ms: float
    peak_bytes: int | None
    loss_error: float
    grad_error: float
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    explained: str = ""
    matches: int = 0


def autocast(device: str) -> AbstractContextManager[None]:
    """A context with bf16 autocast on a GPU, as such models are trained. A CPU computes in fp32."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def errors(loss: Tensor, model: nn.Module, batch: data.Batch) -> tuple[float, float]:
    """The relative errors of the loss and of the worst gradient of a parameter, against fp64."""
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    wanted = exact(*batch.tensors())
    wanted.backward()
    have, want = gradients(model), gradients(exact)
    worst = max(((have[k] - want[k]).norm() / want[k].norm()).item() for k in want)
    return abs((loss.double() - wanted) / wanted).item(), worst


def gradient_step(forward: Trained, model: nn.Module, batch: data.Batch) -> Tensor:
    """Compute new gradients, and return the loss. The parameters do not change."""
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
    """Train, and print a line for each step. Returns the losses and the seconds of all steps."""
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
        if sum(seconds) > setting.seconds or time.time() > setting.until:
            break
    return losses, seconds


def run(setting: Setting, turn: Callable[[], float] | None = None) -> Run:
    """The whole run of one contender.

    It compiles and compares with fp64 on the first batch. Then it trains, and reports what is known
    so far. At last it measures the memory of a step, and evaluates the ranking.

    turn: Waits for the turn to train, and returns `Setting.until`.
    """
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
    if turn is not None:
        setting = dataclasses.replace(setting, until=turn())
    losses, seconds = train(setting, forward, model, batches)
    step_s = statistics.median(seconds)
    result = Run(
        contender=setting.contender,
        losses=losses,
        compile_s=max(first_s - step_s, 0.0),
        step_ms=step_s * 1e3,
        peak_bytes=None,
        loss_error=loss_error,
        grad_error=grad_error,
        explained=explained,
        matches=matches,
    )
    report(result)
    result.peak_bytes = peak_extra_bytes(once, setting.device)
    with torch.no_grad():
        ranked = histories.sample(setting.ranked)
        result.metrics = metrics.evaluate(ranked, model.rank, setting.length, device=setting.device)
    return result


def wait() -> float:
    """Say that all is compiled, and wait until it is this contender's turn."""
    print(json.dumps({"compiled": True}), flush=True)
    return float(sys.stdin.readline())


def report(result: Run) -> None:
    print(json.dumps({"result": dataclasses.asdict(result)}), flush=True)


def drawn(setting: Setting, histories: data.Histories) -> list[data.Batch]:
    """All training batches, on the device."""
    sizes = (setting.steps, setting.batch, setting.length, setting.negatives)
    return [batch.to(setting.device) for batch in data.batches(histories, *sizes, setting.seed)]


def explain(model: nn.Module, batch: data.Batch) -> tuple[str, int]:
    import gdpa_inductor

    with autocast(batch.history.device.type):
        report = gdpa_inductor.explain(model)(*batch.tensors())
    return str(report), len(report.matches)


if __name__ == "__main__":
    report(run(Setting(**json.loads(sys.argv[1])), wait))
