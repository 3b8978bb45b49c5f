"""A row of `bench models`: a model, its sizes, and its attentions as cases of their own.

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
    """A model and its arguments. `function(*inputs)` returns one tensor; it may be a module."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Model:
    """A row of `bench models`.

    build:    It returns the model of a case.
    gpu:      B, H, N and D on a GPU. The width of a model is H·D.
    cpu:      The same on a CPU.
    regions:  The number of attentions that gdpa fuses.
    alone:    The attentions, one for each kind. Each has the fields that differ from
              `Case("silu", "none", sizes)`.
    fill:     The fill of a case. Above 0 the model is jagged.
    """

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
        """The attentions of a case of this model, as cases of their own.

        A size in `alone` may be a function of the model's case.
        """
        dtype = "bfloat16" if autocasts(case) else case.dtype
        plain = dataclasses.replace(case, activation="silu", variant="none", dtype=dtype, fill=0.0)
        return tuple(
            dataclasses.replace(
                plain, **{key: v(case) if callable(v) else v for key, v in own.items()}
            )
            for own in self.alone
        )


def autocasts(case: Case) -> bool:
    """True if the dtype of a case is "autocast": parameters in fp32, products in bf16."""
    return case.dtype == "autocast"
