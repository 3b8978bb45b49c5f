"""The recipe of jagged batches under CUDA graphs, `docs/recipes/cuda_graphs.md`, for its tests."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from docs.tools.blocks import blocks

PAGE = Path(__file__).parents[1] / "docs" / "recipes" / "cuda_graphs.md"
LENGTHS = ((100, 0, 128, 27), (90, 60, 5, 128), (128, 128, 100, 1), (9, 0, 0, 1), (60, 60, 60, 60))
SIZES = 2  # of those lengths, padded


def recipe() -> Any:
    """The page's names. Its last two blocks train, and are not run."""
    names: dict[str, Any] = {}
    for block in blocks(PAGE.read_text())[:3]:
        exec(compile(block.code, str(PAGE), "exec"), names)
    return SimpleNamespace(**names)


def batches(of: Any) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for lengths in LENGTHS:
        items = torch.randint(of.ITEMS, (sum(lengths) + 1,), generator=generator).to(of.device)
        yield items[:-1], items[1:], torch.tensor([0, *lengths]).cumsum(0).to(of.device)


def step(model: torch.nn.Module, call: Callable[..., Tensor], batch: Sequence[Tensor]) -> dict:
    """The loss, and the gradient of each parameter."""
    model.zero_grad()
    torch.compiler.cudagraph_mark_step_begin()
    loss = call(*batch)
    loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    return {"loss": loss.detach().clone(), **grads}
