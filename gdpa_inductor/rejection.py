"""Why a candidate is not fused. A `Rejection` is a value with a stable `Code`.

It is falsy, so `if not result:` tests for it. Codes have four categories. They are part of
the public interface: docs/reasons.md documents them, and they are never renamed. Tests, logs and
reports print the same texts.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import Literal

from .terminal import printable


class Category(enum.Enum):
    """What kind of reason a code is. `strict` raises for the first two only."""

    UNSAFE = "UNSAFE"  # a rewrite could change what the model computes
    UNSUPPORTED = "UNSUPPORTED"  # it is GDPA, and this version cannot run it fused
    NOT_GDPA = "NOT_GDPA"  # it is another operator
    NOT_PROFITABLE = "NOT_PROFITABLE"  # it is GDPA, and fusing it would not pay


_Row = tuple[Category, str, str]


def _row(category: Category, meaning: str, advice: str = "") -> _Row:
    return category, meaning, advice


_unsafe = functools.partial(_row, Category.UNSAFE)
_unsupported = functools.partial(_row, Category.UNSUPPORTED)
_not_gdpa = functools.partial(_row, Category.NOT_GDPA)
_not_profitable = functools.partial(_row, Category.NOT_PROFITABLE)


class Code(enum.Enum):
    """A code for each reason: (category, meaning, what the user can change, or "")."""

    MUTATED_OPERAND = _unsafe(
        "an operand is changed in place between its use and the output",
        "write to a copy, or after the second product",
    )
    MUTATED_SCORES = _unsafe(
        "the scores, or a view of them, are changed in place from outside",
        "make the change out of place",
    )
    GRAD_MODE = _unsafe(
        "the gradient mode changes between the two products",
        "put both products under the same `no_grad` or `enable_grad`",
    )
    OPAQUE_CALL = _unsafe(
        "a call that cannot be analysed touches the scores",
        "spell the call in torch functions, or move it outside of the two products",
    )
    INVALID_REWRITE = _unsafe(
        "the planned rewrite was found to compute something else: a bug of the matcher",
        "please report the lines that were logged",
    )

    SCORES_ESCAPE = _unsupported(
        "the scores are used by something besides the second product",
        "do not return or reuse the scores (`output_attentions=False`)",
    )
    DROPOUT = _unsupported(
        "random numbers act on the weights, in another way than dropout",
        "write `F.dropout(weights, p)`, which is fused; in `eval()` dropout vanishes",
    )
    POINTWISE_OP = _unsupported(
        "an operation on the scores is not in the vocabulary",
        "spell the function with the operations of a score program",
    )
    UNKNOWN_TORCH = _unsupported(
        "the installed torch computes or differentiates an operation as no tested version does",
        "use a version of torch that is tested, and please report it",
    )
    LAYOUT = _unsupported(
        "the dimensions cannot be brought to [B, H, N, D]",
        "bring the operands to [B, H, N, D] by views",
    )
    OPERAND_EXPANDS = _unsupported(
        "an operand would have to be expanded to be read",
        "pass the operand with dimensions of size 1 where it is shared",
    )
    DTYPE = _unsupported(
        "no kernel takes operands of this dtype, or of these dtypes together",
        "cast the operands to one of fp32, bf16 or fp16; keep integers in int64",
    )
    DEVICE = _unsupported(
        "this device has no kernel, or operands are on several devices",
        "put all operands on one device that has a kernel "
        "(`python -m gdpa_inductor doctor` lists them)",
    )
    HEAD_DIM = _unsupported("a head dim is outside the range of the kernels")
    TENSOR_KIND = _unsupported(
        "a tensor is sparse, quantised, nested or of a subclass", "pass plain strided tensors"
    )
    ANALYSIS = _unsupported(
        "the region could not be traced, or its rewrite could not be judged",
        "please report it, with the graph that `TORCH_LOGS=graph_code` prints",
    )
    LOWERING = _unsupported(
        "the lowering failed", "please report it; the reason in the log says what failed"
    )
    JAGGED_OUTPUT = _unsupported(
        "padded rows of the output are used",
        "unpad right after the second product, with views and casts at most between",
    )
    JAGGED_OFFSETS = _unsupported(
        "operands are padded or unpadded by different offsets",
        "use one offsets tensor for K and V, and one for Q and the output",
    )
    JAGGED_FILL = _unsupported(
        "the padding is not zero, or its weights or slopes are infinite",
        "pad V with zeros, Q and K with numbers of at most ±1",
    )
    JAGGED_OPERAND = _unsupported(
        "an operand is not made by padding jagged values alone",
        "act on the values before they are padded",
    )
    JAGGED_LENGTH = _unsupported(
        "the length that the output is unpadded to is not known to be that of the jagged values",
        "give the unpadding function the number of values "
        "(`dense_to_jagged(x, [offsets], q.shape[0])`)",
    )
    JAGGED_LAYOUT = _unsupported(
        "the padded dimensions are not the batch and the rows or keys of the attention",
        "pad one jagged dimension, and attend along it",
    )
    JAGGED_PADDING = _unsupported(
        "values are padded by a function that is not read as padding",
        "pad by offsets (a nested tensor, fbgemm's `jagged_to_padded_dense`), or call "
        "`gdpa_inductor.attention` with `cu_seqlens_q` and `cu_seqlens_k`",
    )
    DDP_CUT = _unsupported(
        "DDP cuts the graph between the two products",
        "set `torch._dynamo.config.optimize_ddp = False`",
    )
    TABLE_GRADIENT = _unsupported(
        "a learned table that a bias is looked up in keeps the gradient that torch gives it",
        "look up by a plain index, with a dense gradient",
    )
    TABLE_STORED = _unsupported(
        "a bias that is looked up in a table is stored, as the program cannot look it up",
        "look up in a view of the table, at one index of integers",
    )

    PAGES_COPIED = _unsupported(
        "keys and values that lie in pages are copied before they are read",
        "gather whole pages of K and V by one table, and read the copy by views alone",
    )

    NORMALISED = _not_gdpa("the weights are normalised along a row or column (softmax, sum, norm)")
    REDUCTION = _not_gdpa("a reduction or scan runs over the scores")
    CROSS_ELEMENT = _not_gdpa("an element of the weights depends on several scores")
    CONTRACTION = _not_gdpa("the second product does not contract the keys")
    SCORES_BROADCAST = _not_gdpa("an operand broadcasts the scores to more dimensions")
    SEVERAL_SCORES = _not_gdpa("the weights are built from more than one product")
    FLAT = _not_gdpa(
        "inputs of two dimensions are taken for weights",
        "give activations a batch dimension: `[1, N, D]`",
    )

    TOO_SMALL = _not_profitable(
        "there are too few rows, columns or channels to gain",
        "force it with `options={'gdpa.profit': False}`",
    )
    HEAD_DIM_LARGE = _not_profitable("a head dim is so large that the unfused form wins")
    SLOWER = _not_profitable(
        "the cost model expects the unfused form to be faster",
        "force it with `options={'gdpa.profit': False}`",
    )

    @property
    def category(self) -> Category:
        return self.value[0]

    @property
    def meaning(self) -> str:
        return self.value[1]

    @property
    def advice(self) -> str:
        """What the user can change, or "" if there is nothing."""
        return self.value[2]


@dataclass(frozen=True)
class Rejection:
    """A candidate that is not fused, and why.

    code:         The code of the reason.
    reason:       One sentence.
    location:     The "file:line" in the user's source, or "".
    node:         The name of its node in the graph, or "".
    module:       The path of its module, such as "layers.0", or "".
    formula:      The weights as a function of the score s, or "" if they were not read.
    score_bytes:  The bytes of all scores, or None if their number is not known.
    change:       What the user can change, where the code's own advice does not fit.
    """

    code: Code
    reason: str
    location: str = ""
    node: str = ""
    module: str = ""
    formula: str = ""
    score_bytes: int | None = None
    change: str | None = None

    @property
    def advice(self) -> str:
        """What the user can change here, or "" if there is nothing."""
        return self.code.advice if self.change is None else self.change

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return printable(f"{place}{self.code.category.value}/{self.code.name}: {self.reason}")


class GDPAError(RuntimeError):
    """Raised under `gdpa.strict` and `gdpa.expect`, and by the public functions on bad input."""
