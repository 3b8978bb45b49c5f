"""What a row of `bench models` is: how its model is built, at which sizes, and its attention alone.

In: a case with the row's sizes. Out: `Built`, on the CPU and in fp32, with random data.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..cases import Case

Sizes = tuple[int, int, int, int]
DEPTH = 2


@dataclasses.dataclass(frozen=True)
class Built:
    """`function(*given)`: a module or a function of tensors. It gives one tensor."""

    function: Callable[..., Tensor]
    given: tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Model:
    """A row.

    `gpu`, `cpu`: B, H, N and D; the width of a model is H·D.
    `regions`: how many attentions of it are ours.
    `alone`: what its attention has other than `Case("silu", "none", sizes)`; one for each kind.
    `fill`: as that of a case: above 0 the model is jagged."""

    build: Callable[[Case], Built]
    gpu: Sizes
    cpu: Sizes
    regions: int
    alone: tuple[dict[str, Any], ...]
    fill: float = 0.0

    def case(self, name: str, device: str, dtype: str, sizes: Sizes | None = None) -> Case:
        chosen = sizes or (self.gpu if device == "cuda" else self.cpu)
        return Case(name, "model", *chosen, dtype, device, fill=self.fill)

    def attentions(self, case: Case) -> tuple[Case, ...]:
        """The attentions of a case of this model, as cases of their own. A size may be a function
        of the model's case."""
        dtype = "bfloat16" if autocasts(case) else case.dtype
        plain = dataclasses.replace(case, activation="silu", variant="none", dtype=dtype, fill=0.0)
        return tuple(
            dataclasses.replace(
                plain, **{key: v(case) if callable(v) else v for key, v in own.items()}
            )
            for own in self.alone
        )


def autocasts(case: Case) -> bool:
    """Parameters in fp32, products in bf16: the dtype "autocast"."""
    return case.dtype == "autocast"
