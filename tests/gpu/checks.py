"""What the tests on a GPU share: operands on the card, the error rule, a compile that must fuse."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gdpa_inductor import gdpa_backend
from gdpa_inductor.operands import Operands
from tests.tolerances import error_of


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs compute capability 9.0")


def on_card(o: Operands[Tensor]) -> Operands[Tensor]:
    return o.filled([x.cuda() if isinstance(x, torch.Tensor) else x for x in o.flat()])


def check_gradients(
    fused: Iterable[Tensor], eager: Iterable[Tensor], exact: Iterable[Tensor]
) -> None:
    """The error rule for each gradient."""
    for number, (mine, theirs, truth) in enumerate(zip(fused, eager, exact, strict=True)):
        wrong = error_of(mine, theirs, truth, direction="backward")
        assert wrong is None, (number, wrong)


def check_step(fused: Sequence[Tensor], eager: Sequence[Tensor], exact: Sequence[Tensor]) -> None:
    """The error rule for an output, and for the gradients behind it."""
    wrong = error_of(fused[0], eager[0], exact[0], direction="forward")
    assert wrong is None, wrong
    check_gradients(fused[1:], eager[1:], exact[1:])


def compiled(function: Callable, *, mode: str | None = None, kernel: str = "", **how) -> Callable:
    """By the backend itself; whatever is right is rewritten, and exactly one region is."""
    options = {"gdpa.profit": False, "gdpa.strict": True, "gdpa.expect": 1}
    if kernel:
        options["gdpa.kernel"] = kernel

    def backend(gm, inputs):
        return gdpa_backend(gm, inputs, mode=mode, options=options)

    return torch.compile(function, backend=backend, **how)


def check_bits(run: Callable[[], Sequence[Tensor]], times: int = 20) -> None:
    """The same in every run."""
    first = run()
    for _ in range(times):
        assert all(map(torch.equal, run(), first))


def captured(run: Callable) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of a run, and the tensors that a replay stores to."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return graph, results
