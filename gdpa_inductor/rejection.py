"""Why a candidate stays as the user wrote it: stable codes, in four classes, and the refusal as a
value.

A refusal is falsy, so `if not result:` reads as it should. The codes are part of the public
interface: they are documented in docs/reasons.md, never renamed, and what tests, logs and reports
print.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal


class Category(enum.Enum):
    """What kind of answer a refusal is. `strict` raises for the first two only."""

    UNSAFE = "UNSAFE"  # a rewrite could change what the model computes
    UNSUPPORTED = "UNSUPPORTED"  # it is GDPA, and this version cannot run it fused
    NOT_GDPA = "NOT_GDPA"  # it is another operator
    NOT_PROFITABLE = "NOT_PROFITABLE"  # it is GDPA, and fusing it would not pay


class Code(enum.Enum):
    """One code for each reason; the value is (class, what it means)."""

    # UNSAFE
    MUTATED_OPERAND = (
        Category.UNSAFE,
        "an operand is changed in place between its use and the output",
    )
    MUTATED_SCORES = (
        Category.UNSAFE,
        "the scores, or a view of them, are changed in place from outside",
    )
    GRAD_MODE = (Category.UNSAFE, "the gradient mode changes between the two products")
    OPAQUE_CALL = (Category.UNSAFE, "a call that cannot be analysed touches the scores")
    INVALID_REWRITE = (
        Category.UNSAFE,
        "the planned rewrite was found to compute something else: a bug of the matcher",
    )
    # UNSUPPORTED
    SCORES_ESCAPE = (
        Category.UNSUPPORTED,
        "the scores are used by something besides the second product",
    )
    DROPOUT = (Category.UNSUPPORTED, "dropout with p > 0 acts on the weights")
    POINTWISE_OP = (Category.UNSUPPORTED, "an operation on the scores is not in the vocabulary")
    LAYOUT = (Category.UNSUPPORTED, "the dimensions cannot be brought to [B, H, N, D]")
    OPERAND_EXPANDS = (Category.UNSUPPORTED, "an operand would have to be expanded to be read")
    DTYPE = (Category.UNSUPPORTED, "operands of this dtype, or of mixed dtypes")
    DEVICE = (Category.UNSUPPORTED, "no kernel for this device, or operands on several devices")
    HEAD_DIM = (Category.UNSUPPORTED, "a head dim outside the range that the kernels take")
    TENSOR_KIND = (Category.UNSUPPORTED, "a sparse, quantised, nested or subclass tensor")
    ANALYSIS = (
        Category.UNSUPPORTED,
        "the region could not be traced, or its rewrite could not be judged",
    )
    LOWERING = (Category.UNSUPPORTED, "the lowering refused or failed")
    JAGGED_OUTPUT = (Category.UNSUPPORTED, "padded rows of the output are used")
    JAGGED_OFFSETS = (Category.UNSUPPORTED, "operands are padded or unpadded by different offsets")
    JAGGED_FILL = (
        Category.UNSUPPORTED,
        "padding is something else than zero, or its weights or slopes are infinite",
    )
    JAGGED_OPERAND = (Category.UNSUPPORTED, "an operand is not made by padding jagged values alone")
    JAGGED_LENGTH = (
        Category.UNSUPPORTED,
        "the length that the output is unpadded to is not known to be that of the jagged values",
    )
    JAGGED_LAYOUT = (
        Category.UNSUPPORTED,
        "the padded dimensions are not the batch and the rows or keys of the attention",
    )
    # NOT_GDPA
    NORMALISED = (
        Category.NOT_GDPA,
        "the weights are normalised along a row or column (softmax, sum, norm)",
    )
    REDUCTION = (Category.NOT_GDPA, "a reduction or scan runs over the scores")
    CROSS_ELEMENT = (Category.NOT_GDPA, "an element of the weights depends on several scores")
    CONTRACTION = (Category.NOT_GDPA, "the second product does not contract the keys")
    SCORES_BROADCAST = (Category.NOT_GDPA, "an operand broadcasts the scores to more dimensions")
    SEVERAL_SCORES = (Category.NOT_GDPA, "the weights are built from more than one product")
    # NOT_PROFITABLE
    TOO_SMALL = (Category.NOT_PROFITABLE, "too few rows, columns or channels to gain")
    HEAD_DIM_LARGE = (Category.NOT_PROFITABLE, "a head dim so large that the unfused form wins")
    SLOWER = (Category.NOT_PROFITABLE, "the cost model expects the unfused form to be faster")

    @property
    def category(self) -> Category:
        return self.value[0]

    @property
    def meaning(self) -> str:
        return self.value[1]


@dataclass(frozen=True)
class Rejection:
    """A refused candidate. `reason`: one sentence. `location`: "file:line" in the user's source, or
    "".
    """

    code: Code
    reason: str
    location: str = ""
    node: str = ""

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return f"{place}{self.code.category.value}/{self.code.name}: {self.reason}"


class GDPAError(RuntimeError):
    """Raised under `gdpa.strict` and `gdpa.expect`, and by the public functions on bad input."""
