"""Other people's models, rewritten and run against eager: each is a line of a text file.

    python -m tests.clients.sweep docs/lab/sweep.txt [WORD ...]

A line is a model and its inputs, as Python expressions with `|` between them. Modules are imported
by their names, and torch's functions need none: `flash_pytorch.GAU(dim=32) | randn(2, 16, 32)`.
`Call(function)` makes a model of a function. WORD: only lines that hold it.

Each model runs in training, without dropout and with all gradients, and in evaluation: in fp64, or
in fp32 where it cannot. Printed are nodes, regions, refusals by code, milliseconds of the pass for
a node, and the largest difference from eager, as a part of the largest element. Where a model casts
to fp32 itself, that is some 1e-7. Lines below a model are its formulas and its refusals.
"""

import collections
import copy
import importlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from tests._recorder import Recorder


class Call(torch.nn.Module):
    """A function as a model, with the keyword arguments that it always gets."""

    def __init__(self, function: Callable, **always: Any) -> None:
        super().__init__()
        self.function, self.always = function, always

    def forward(self, *operands: Any) -> Any:
        return self.function(*operands, **self.always)


class Timed(Recorder):
    """A recorder that knows how many nodes it saw, and what our pass took."""

    nodes, seconds = 0, 0.0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
        self.nodes += sum(len(m.graph.nodes) for m in gm.modules() if hasattr(m, "graph"))
        start = time.process_time()
        try:
            return super().__call__(gm, example_inputs)
        finally:
            self.seconds += time.process_time() - start


def evaluated(expression: str) -> Any:
    """The value of an expression; dotted names in it are imported as far as they are modules."""
    names: dict[str, Any] = {**vars(torch), "Call": Call, "torch": torch}
    for dotted in re.findall(r"(?<![\w.'\"])[a-zA-Z_]\w*(?:\.[a-zA-Z_]\w*)+", expression):
        parts = dotted.split(".")
        for length in range(1, len(parts)):
            try:
                importlib.import_module(".".join(parts[:length]))
            except ModuleNotFoundError:
                break
        if parts[0] in sys.modules:
            names[parts[0]] = sys.modules[parts[0]]
    torch.manual_seed(0)
    return eval(expression, names)


def built(line: str) -> tuple[torch.nn.Module, tuple]:
    """The model of a line, without dropout, and its inputs."""
    model, _, operands = line.partition("|")
    module, inputs = evaluated(model.strip()), evaluated(operands.strip())
    for part in module.modules():
        if isinstance(part, _DropoutNd):
            part.p = 0.0
    return module, inputs if isinstance(inputs, tuple) else (inputs,)


def widened(value: Any) -> Any:
    def wide(x: Any) -> Any:
        return x.double() if torch.is_tensor(x) and x.is_floating_point() else x

    return pytree.tree_map(wide, value)


def step(model: torch.nn.Module, call: Callable, operands: tuple) -> dict[str, torch.Tensor]:
    """The outputs, and in training the gradients of their sum by all parameters and inputs."""
    torch.manual_seed(1)
    model.zero_grad()
    operands = copy.deepcopy(operands)
    leaves = [x for x in operands if torch.is_tensor(x) and x.is_floating_point()]
    with torch.set_grad_enabled(model.training):
        for x in leaves:
            x.requires_grad_(model.training)
        flat = [x for x in pytree.tree_leaves(call(*operands)) if torch.is_tensor(x)]
    outcome = {f"output {i}": x.detach() for i, x in enumerate(flat)}
    requested = [x for x in flat if x.requires_grad]
    if requested:
        sum(x.sin().sum() for x in requested).backward()
    named = [*model.named_parameters(), *((f"input {i}", x) for i, x in enumerate(leaves))]
    return {**outcome, **{name: x.grad for name, x in named if x.grad is not None}}


def apart(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest difference, each as a part of the largest element."""
    worst = 0.0
    for name in mine.keys() | theirs.keys():
        x, y = (side.get(name) for side in (mine, theirs))
        x, y = (torch.zeros_like(y) if x is None else x), (torch.zeros_like(x) if y is None else y)
        if x.shape != y.shape or not torch.equal(x.isfinite(), y.isfinite()):
            return float("inf")
        most = y.double().abs().nan_to_num(0, 0, 0).max().item() if y.numel() else 0.0
        distance = (x.double() - y.double()).abs().nan_to_num(0, 0, 0)
        worst = max(worst, distance.max().item() / (most or 1.0) if y.numel() else 0.0)
    return worst


def judged(model: torch.nn.Module, operands: tuple, training: bool) -> Iterator[str]:
    """What there is to print of a model in one mode."""
    model.train(training)
    state = copy.deepcopy(model.state_dict())
    results, recorder = [], Timed()
    torch._dynamo.reset()
    for call in (model, torch.compile(model, backend=recorder)):
        results.append(step(model, call, operands))
        model.load_state_dict(state)
    codes = collections.Counter(r.code.name for r in recorder.rejections)
    pace = 1e3 * recorder.seconds / max(recorder.nodes, 1)
    printed = ", ".join(f"{n} {code}" for code, n in codes.items()) or "none refused"
    yield (
        f"  {'training' if training else 'evaluation'}: {recorder.nodes} nodes,"
        f" {len(recorder.matches)} fused, {printed}, {pace:.2f} ms a node,"
        f" {apart(*results[::-1]):.0e} from eager"
    )
    for match in dict.fromkeys(m.score_mod.formula for m in recorder.matches):
        yield f"    + {match}"
    for refusal in dict.fromkeys(f"{r.code.name}: {r.reason}" for r in recorder.rejections):
        yield f"    - {refusal}"


def swept(line: str) -> Iterator[str]:
    """What there is to print of a line."""
    yield line
    model, operands = built(line)
    wide = copy.deepcopy(model).double()
    try:
        step(wide.eval(), wide, widened(operands))
        model, operands = wide, widened(operands)
    except Exception:
        yield "  in fp32"
    for training in (True, False):
        yield from judged(model, operands, training)


def main(path: str, *words: str) -> None:
    for line in Path(path).read_text().splitlines():
        if not line or line.startswith("#") or not all(word in line for word in words):
            continue
        try:
            for printed in swept(line):
                print(printed, flush=True)
        except Exception as error:
            print(f"  {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
