"""Problems for the Triton kernels, each with a bound on its error against the fp64 reference: a
table, one line each.

A case is judged in fp32: the interpreter's low precision is not to be trusted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from gdpa_inductor._compat.shapes import dense_strides
from gdpa_inductor.lowerings.triton import lower, plan
from gdpa_inductor.ops import ATTENTION, operands_of
from gdpa_inductor.program.expr import POSITIONS
from gdpa_inductor.program.score_mod import Aux, ScoreMod
from gdpa_inductor.reference import reference, reference_backward

from . import render

SILU = "silu(mul(s,0.25))"


@dataclass(frozen=True)
class Case:
    """query [b,h,m,d], key [bk,hk,n,d], value [bv,hv,n,dv]; operands of the program as it says.

    view: how the operands lie in memory. needs: the gradients to ask for, "qkv" and the numbers of
    aux operands; "" is inference. choice: which configuration of the table. capability: of the
    faked device. spent: only the backward runs, and dK takes the memory of K. blocks: operands are
    0 (truth values False, and True elsewhere) in every second square of so many rows and columns.
    """

    name: str
    program: str
    m: int = 32
    n: int = 48
    d: int = 16
    dv: int = 16
    b: int = 2
    h: int = 2
    hk: int = 0
    hv: int = 0
    bq: int = 0
    bk: int = 0
    bv: int = 0
    scalars: tuple[int, ...] = ()
    view: str = "contiguous"
    needs: str = "qkv"
    choice: int = 9
    capability: int = 90
    dynamic: bool = False
    wide: bool = False
    spent: bool = False
    blocks: int = 0
    tolerance: float = 2e-5
    options: str = "kernel=triton,strict=True"
    half: bool = False  # fp16
    processors: int = 0  # of the faked device, see `fake_cuda`
    integers: torch.dtype = torch.int64  # of integer operands
    places: int = 0  # of tables: integer operands are in 0 to places - 1
    stored: int = 1 << 26  # bytes of terms of a table that may be stored at a time
    cached: bool = True  # operands that all batches read stay in the L2 cache

    @property
    def mod(self) -> ScoreMod:
        return ScoreMod.parse(self.program)

    @property
    def needed(self) -> list[bool]:
        return [name in self.needs for name in ["q", "k", "v", *map(str, range(self.count))]]

    @property
    def count(self) -> int:
        """Of the program's operands."""
        return len(self.mod.aux)

    @property
    def sizes(self) -> dict[str, int]:
        """Of the axes that operands of the program may have."""
        return {"b": self.b, "h": self.h, "q_idx": self.m, "kv_idx": self.n, "-": 1,
                "t": self.places}  # fmt: skip

    def tensors(self) -> list[torch.Tensor]:
        """grad_out, query, key, value and the aux operands, fp32."""
        shapes = [
            (self.b, self.h, self.m, self.dv),
            (self.bq or self.b, self.h, self.m, self.d),
            (self.bk or self.b, self.hk or self.h, self.n, self.d),
            (self.bv or self.b, self.hv or self.h, self.n, self.dv),
        ]
        values = [_laid_out(shape, self.view) for shape in shapes]
        return [*values, *map(self.aux_operand, self.mod.aux)]

    def aux_operand(self, spec: Aux) -> torch.Tensor:
        shape = [self.sizes[axis] for axis in spec.access]
        drawn = torch.randn(shape)
        if self.blocks and spec.axes & POSITIONS:
            squares = torch.zeros(shape, dtype=torch.long)
            for dim, entry in enumerate(spec.access):
                if entry in POSITIONS:
                    places = torch.arange(shape[dim]) // self.blocks
                    squares += places.view([-1 if d == dim else 1 for d in range(len(shape))])
            assert {*(squares % 2).flatten().tolist()} == {0, 1}, "blocks of both kinds"
            drawn = drawn.abs() * (squares % 2 == 0)
        numbers = (drawn * 4).long() % self.places if self.places else (drawn * 4).long()
        return {"f": drawn, "b": drawn > 0, "i": numbers.to(self.integers)}[spec.kind]

    def lengths(self, rest: list[torch.Tensor]) -> tuple:
        """The arguments of the ops behind the options. rest: the tensors behind the operands."""
        return ()

    def function(self) -> Callable:
        count = self.count

        def run(grad_out, query, key, value, *rest):
            lengths = self.lengths(list(rest[count:]))
            operands = (query, key, value, list(rest[:count]), list(self.scalars), self.program)
            forward = ATTENTION.of(self.mod).op
            result = [] if self.spent else [*as_tuple(forward(*operands, self.options, *lengths))]
            if self.needs:
                more = (self.needed, self.options, *lengths)
                result += torch.ops.gdpa.attention_backward(grad_out, *operands, *more)
            return result

        return run

    def source(self, tensors: Sequence[torch.Tensor], **options: Any) -> str:
        """The code that Inductor writes for a call with these operands."""
        fields = ("capability", "choice", "dynamic", "wide", "processors")
        device = {name: getattr(self, name) for name in fields}
        return render.wrapper(self.function(), tensors, **device | options)

    def sources(self, dtype: torch.dtype | None = None, **options: Any) -> dict[str, str]:
        """The kernels of that code: name to module text. dtype: of real operands."""
        tensors = self.tensors() if dtype is None else in_dtype(self.tensors(), dtype)
        return render.kernels(self.source(tensors, **options))

    def templates(self, dtype: torch.dtype | None = None, **options: Any) -> dict[str, str]:
        """Of these the ones of this package."""
        every = self.sources(dtype, **options).items()
        return {name: text for name, text in every if "triton_heuristics.template" in text}

    def expected(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        grad_out, query, key, value, *rest = in_dtype(tensors, torch.float64)
        leading = (query, key, value, rest[: self.count], self.scalars, self.program)
        operands = operands_of(*leading, *self.lengths(rest[self.count :]))
        results = [] if self.spent else [*as_tuple(reference(operands))]
        if self.needs:
            results += reference_backward(grad_out, operands, self.needed)
        return results

    def likes(self, tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Of each result the operand that it may lie as."""
        requests = [x for x, need in zip(tensors[1:], self.needed, strict=False) if need]
        likes = [x if x.dim() == 4 else None for x in requests if self.needs]
        return likes if self.spent else [*[None] * len(self.mod.roots), *likes]

    def check(self, call: Callable) -> str:
        """Render, run by `call(source, tensors)`, compare; "" or what is wrong."""
        torch.manual_seed(0)
        tensors = self.tensors()
        if self.half:
            tensors = in_dtype(tensors, torch.float16)
        cached = mock.patch.object(plan, "CACHED", plan.CACHED if self.cached else 0)
        with cached, mock.patch.object(lower, "STORED", self.stored):
            source = self.source(tensors, donated=[2] if self.spent else [])
        expected = self.expected(tensors)
        result = call(source, tensors)
        if self.spent and result[1].data_ptr() != tensors[2].data_ptr():
            return "dK has memory of its own"
        likes = self.likes(tensors)
        for i, (got, want) in enumerate(zip(result, expected, strict=True)):
            fault = _fault(got, want, self.tolerance, likes[i])
            if fault:
                return f"result {i}: {fault}"
        return ""


def as_tuple(results: object) -> tuple:
    """The output alone, or with row sums."""
    return results if isinstance(results, tuple) else (results,)


def in_dtype(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """The tensors, real ones in this dtype; with their strides."""
    return [t.to(dtype) if t.is_floating_point() else t for t in tensors]


def _laid_out(shape: tuple[int, ...], view: str) -> torch.Tensor:
    b, h, length, width = shape
    if view == "bnhd":
        return torch.randn(b, length, h, width).transpose(1, 2)
    if view == "split":  # a slice of a wider projection, with an offset
        return torch.randn(b, length, h, 3 * width)[..., width : 2 * width].transpose(1, 2)
    if view == "transposed":
        return torch.randn(b, h, width, length).mT
    return torch.randn(shape)


def _fault(
    got: torch.Tensor, want: torch.Tensor, tolerance: float, like: torch.Tensor | None = None
) -> str:
    """like: the operand that a gradient may lie as; else a result is contiguous."""
    known = [torch.empty(want.shape).stride(), *([] if like is None else [dense_strides(like)])]
    if got.shape != want.shape or got.stride() not in known:
        return f"shape {tuple(got.shape)}, strides {got.stride()}; not {tuple(want.shape)} dense"
    if not torch.equal(got.isfinite(), want.isfinite()):
        return "not finite in other places than the reference"
    finite = want.isfinite()
    error = (got.double() - want)[finite].abs().max().item() if finite.any() else 0.0
    bound = tolerance * max(1.0, want[finite].abs().max().item()) if finite.any() else 0.0
    return "" if error <= bound else f"error {error:.2e}, allowed {bound:.2e}"


ACTIVATIONS = {
    "identity": "mul(s,0.25)",
    "relu": "relu(s)",
    "relu2": "pow(relu(s),2.0)",
    "leaky_relu": "leaky_relu(s,0.01)",
    "silu": SILU,
    "gelu": "gelu(mul(s,0.25))",
    "gelu_tanh": "gelu_tanh(mul(s,0.25))",
    "sigmoid": "sigmoid(sub(s,2.0))",
    "tanh": "tanh(mul(s,0.25))",
    "hardswish": "hardswish(s)",
    "hardsigmoid": "hardsigmoid(s)",
    "hardtanh": "hardtanh(s,-1.0,2.0)",
    "elu_plus_one": "add(elu(s,1.0,1.0,1.0),1.0)",
    "softplus": "softplus(s,1.0,20.0)",
    "mish": "mish(mul(s,0.25))",
    "exp": "exp(mul(s,0.125))",
    "laplace": "mul(add(erf(div(sub(s,0.707),0.4)),1.0),0.5)",
    "quick_gelu": "mul(s,sigmoid(mul(s,1.702)))",
    "absolute": "abs(s)",
    "clamped": "clamp_max(clamp_min(s,-1.0),1.5)",
    "extrema": "maximum(s,minimum(mul(s,s),0.5))",
}
# Head dims above 128 are not taken in fp32 without TF32; the interpreter knows no instructions.
HALF: dict[str, Any] = {
    "half": True, "tolerance": 4e-3, "options": "kernel=triton,fast_math=False,strict=True",
}  # fmt: skip
CAUSAL = "where(ge(q_idx,kv_idx),silu(mul(s,0.25)),0.0)"
# a band of i0; a prefix and a band with a gap between them; heads with masks of their own; blocks
# of 40 until a length; targets that see the history and themselves, with operands that only some
# tiles need
WINDOW = "where(and(le(sub(q_idx,kv_idx),i0),ge(q_idx,kv_idx)),silu(mul(s,0.25)),0.0)"
PREFIX = "where(or(lt(kv_idx,40),gt(kv_idx,add(mul(q_idx,4),200))),silu(mul(s,0.25)),0.0)"
HEADS = "where(or(eq(mod(h,2),0),ge(q_idx,kv_idx)),silu(mul(s,0.25)),0.0)"
SEGMENTS = (
    "a0:i[b]; "
    "where(and(eq(floordiv(q_idx,40),floordiv(kv_idx,40)),lt(kv_idx,mul(a0,20))),silu(s),0.0)"
)
TARGETS = (
    "a0:i[b]; a1:f[b,q_idx]; a2:f[q_idx,kv_idx]; "
    "t0=minimum(q_idx,add(a0,60)); t1=minimum(kv_idx,add(a0,60)); "
    "where(or(gt(t0,t1),eq(q_idx,kv_idx)),mul(silu(add(mul(s,0.25),a2)),a1),0.0)"
)
LEARNED = "a0:f[q_idx,kv_idx]; mul(silu(mul(s,0.25)),where(ge(q_idx,kv_idx),a0,0.0))"
HSTU = (
    "a0:f[h,q_idx,kv_idx]; a1:f[b,-,q_idx,kv_idx]; mul(div(silu(add(mul(s,0.25),a0)),float(i0)),a1)"
)
ALL_KINDS = (
    "a0:f[q_idx]; a1:f[kv_idx]; a2:f[]; a3:f[b,-,-]; "
    "a4:f[h,q_idx]; a5:f[b,h,kv_idx]; a6:b[b,-,-,kv_idx]; a7:f[q_idx,kv_idx]; "
    "where(a6,mul(silu(add(mul(s,a2),add(a0,a1))),add(mul(a3,a4),mul(a5,a7))),0.0)"
)
# operands whose bounds on a tile say what it is
BLOCKS = "a0:b[q_idx,kv_idx]; a1:f[kv_idx]; where(a0,silu(add(s,a1)),0.0)"
PADDING = (
    "a0:b[b,-,kv_idx]; a1:b[b,-,q_idx]; where(and(and(a0,a1),ge(add(q_idx,90),kv_idx)),silu(s),0.0)"
)
FACTOR = "a0:f[h,q_idx,kv_idx]; mul(silu(mul(s,0.25)),a0)"
IDS = "a0:i[b,q_idx]; a1:i[b,kv_idx]; mul(silu(s),float(eq(minimum(a0,1),minimum(a1,1))))"
HIDDEN = "a0:b[q_idx,kv_idx]; mul(silu(s),sub(1.0,float(a0)))"
TABLED = "a0:b[kv_idx,q_idx]; a1:f[q_idx,kv_idx]; where(a0,silu(add(s,a1)),0.0)"
NAN_MASK = "a0:f[q_idx,kv_idx]; mul(relu(s),div(a0,a0))"
ABSOLUTE = "a0:f[q_idx,kv_idx]; abs(minimum(s,div(a0,a0)))"
ADDED = "deterministic=False,strict=True"

HSTU_TAIL: dict[str, Any] = {
    "m": 37, "n": 37, "scalars": (37,), "needs": "qkv01",
}  # fmt: skip
ADDED_BIAS = "a0:f[{}]; silu(add(s,a0))"
HEAD_BIAS = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.25),a0))"
CAUSAL_BIAS = "a0:f[q_idx,kv_idx]; where(ge(q_idx,kv_idx),silu(add(s,a0)),0.0)"
NEIGHBOURS: dict[str, Any] = {"m": 150, "n": 140, "b": 3, "cached": False}
GROUPED = {"h": 4, "hk": 2, "hv": 2}
ELEMENT = {"b": 1, "h": 1, "m": 1, "n": 8}
OPERANDS = "a0:f[h,q_idx,kv_idx]; a1:f[q_idx]; a2:f[kv_idx]; mul(silu(add(add(s,a0),a1)),a2)"
INDICES = "mul(s,float(add(add(mul(b,3),h),mod(floordiv(sub(kv_idx,q_idx),4),3))))"
INTEGERS = (
    "a0:i[b,kv_idx]; a1:i[q_idx]; "
    "where(lt(sub(a0,a1),0),s,where(lt(add(a1,2147483640),0),0.0,silu(s)))"
)

CASES = [
    Case("inference", SILU, needs=""),
    Case("neighbours", HEAD_BIAS, needs="qkv0", **NEIGHBOURS, **GROUPED),
    Case("neighbours_causal", CAUSAL_BIAS, **NEIGHBOURS),
    *(Case(f"activation_{name}", program, tolerance=5e-5) for name, program in ACTIVATIONS.items()),
    *(Case(f"tail_{name}", ACTIVATIONS[name], m=19, n=37) for name in ("sigmoid", "silu", "exp")),
    Case("tail_short", SILU, m=3, n=5),
    Case("one_row", SILU, m=1, n=40),
    Case("one_key", "sigmoid(s)", m=40, n=1),
    Case("head_dims_odd", SILU, m=33, n=31, d=24, dv=40),
    Case("one_element", SILU, d=3, dv=1, **ELEMENT),
    Case("one_element_of_query", SILU, d=1, dv=3, **ELEMENT),
    Case("one_element_of_key", SILU, b=1, h=1, m=7, n=1, d=1, dv=1),
    Case("one_element_of_operands", OPERANDS, b=1, h=1, m=1, n=1, d=3, dv=3, needs="qkv012"),
    Case("head_dims_tiny", SILU, d=3, dv=5),
    Case("head_dims_wide", SILU, m=17, n=16, d=96, dv=160, b=1, h=1, choice=0, **HALF),
    Case("head_dims_256", SILU, m=17, n=33, d=256, dv=256, b=1, h=1, choice=0, **HALF),
    *(Case(f"view_{view}", SILU, m=19, view=view) for view in ("bnhd", "split", "transposed")),
    *(Case(f"table_{i}", SILU, m=150, n=140, d=64, dv=64, b=1, h=1, choice=i) for i in range(2)),
    Case("table_sm80", SILU, m=70, n=130, d=128, dv=128, b=1, h=1, choice=0, capability=80),
    Case("table_sm100", SILU, m=70, n=130, d=128, dv=128, b=1, h=1, choice=0, capability=100),
    Case("gqa", SILU, m=19, **GROUPED),
    Case("mqa", SILU, h=4, hk=1, hv=1),
    Case("gqa_uneven", SILU, h=4, hk=2, hv=1),
    Case("gqa_bias", ADDED_BIAS.format("h,kv_idx"), needs="qkv0", **GROUPED),
    Case("gqa_mask", "a0:f[h,q_idx,kv_idx]; mul(silu(s),a0)", needs="qkv0", **GROUPED),
    Case("seeds_shared", SILU, bq=1, b=3, m=19),
    Case("keys_shared", SILU, bk=1, b=3, n=37),
    Case("values_shared", SILU, bv=1, b=3, n=37),
    Case("keys_values_shared", SILU, bk=1, bv=1, b=3, hk=1, hv=1),
    *(Case(f"only_{needed}", SILU, m=19, needs=needed) for needed in ("q", "k", "v", "kv", "qv")),
    Case("causal", CAUSAL, m=40, n=40),
    Case("causal_tail", CAUSAL, m=37, n=53),
    Case("window", "where(le(abs(sub(q_idx,kv_idx)),5),relu(s),0.0)", m=40, n=40),
    Case("indices", INDICES, m=19, n=21),
    Case("mask_before", "a0:b[q_idx,kv_idx]; sigmoid(where(a0,s,-inf))"),
    Case("mask_int", "a0:i[b,-,q_idx,kv_idx]; mul(silu(s),float(a0))"),
    *(
        Case(f"integers_{name}", INTEGERS, integers=getattr(torch, name))
        for name in ("uint8", "int32")
    ),
    Case("lengths", "a0:i[b]; where(lt(kv_idx,a0),silu(s),0.0)"),
    Case("hstu", HSTU, m=40, n=40, scalars=(40,), needs="qkv01"),
    Case("hstu_tail", HSTU, **HSTU_TAIL),
    *(
        Case(f"bias_{name}", ADDED_BIAS.format(access), m=37, n=19, needs=needs)
        for name, access, needs in (
            ("only", "q_idx,kv_idx", "0"),
            ("full", "b,h,q_idx,kv_idx", "0"),
            ("batch", "b,-,q_idx,kv_idx", "q0"),
            ("reversed", "kv_idx,q_idx", "0"),
        )
    ),
    Case("scale", "a0:f[]; silu(mul(s,a0))", needs="0"),
    Case("scale_one", "a0:f[-,-]; mul(silu(s),a0)", needs="qkv0"),
    Case("row_sums_first", "a0:f[q_idx]; mul(silu(s),a0)", m=19, needs="0"),
    Case("column_sums_first", "a0:f[kv_idx]; mul(silu(s),a0)", n=19, needs="0"),
    Case("all_kinds", ALL_KINDS, needs="qkv0123457"),
    Case("no_score", "a0:f[q_idx,-]; sigmoid(a0)", needs="qkv0"),
    Case("constant", "mul(float(kv_idx),0.125)", needs="qkv"),
    Case("rounded", "bf16(silu(s))", needs="qv", tolerance=2e-2),
    Case("nan_kept", "silu(where(ge(q_idx,kv_idx),s,-inf))", m=20, n=20),
    Case("window_long", WINDOW, m=1100, n=1100, d=16, dv=16, b=1, h=1, scalars=(90,), choice=0),
    Case("prefix_long", PREFIX, m=300, n=1500, b=1, h=1, choice=0, needs="q"),
    Case("prefix_keys_long", PREFIX, m=1500, n=200, b=1, h=1, choice=0, needs="v"),
    Case("causal_flat", "where(ge(q_idx,kv_idx),1.0,0.0)", m=70, n=70),
    Case("causal_dynamic", CAUSAL, m=137, n=153, dynamic=True),
    Case("causal_wide", CAUSAL, m=137, n=153, wide=True),
    Case("causal_gqa", CAUSAL, m=70, n=70, **GROUPED),
    Case("heads_apart", HEADS, m=100, n=100, **GROUPED),
    Case("segments", SEGMENTS, m=100, n=100, needs="qkv"),
    Case("mask_read", TARGETS, m=100, n=100, needs="qkv12"),
    Case("mask_learned", LEARNED, m=100, n=100, needs="qkv0"),
    Case("nothing", "where(gt(kv_idx,1000),silu(s),0.0)", m=40, n=40),
    Case("added", SILU, m=37, n=53, d=24, options=ADDED),
    Case("added_gqa", SILU, m=37, n=53, options=ADDED, **GROUPED),
    Case("added_gqa_uneven", SILU, m=37, n=53, h=4, hk=2, hv=1, options=ADDED),
    Case("added_causal", CAUSAL, m=137, n=153, options=ADDED, dynamic=True),
    Case("added_to_seeds", SILU, bq=1, b=3, m=19, options=ADDED),
    Case("added_kinds", ALL_KINDS, needs="qkv0123457", options=ADDED),
    Case("mask_blocks", BLOCKS, m=90, n=119, needs="qkv1", blocks=40),
    Case("mask_padding", PADDING, m=100, n=130, blocks=66),
    Case("mask_real", FACTOR, m=70, n=90, blocks=40),
    Case("mask_ids", IDS, m=100, n=100, blocks=40),
    Case("mask_hidden", HIDDEN, m=70, n=90, blocks=40, dynamic=True),
    Case("mask_bias", TABLED, m=90, n=70, needs="qv1", blocks=40),
    Case("mask_nan", NAN_MASK, m=70, n=70, needs="", blocks=40),
    Case("sign_of_nan", ABSOLUTE, m=70, n=70, needs="q", blocks=40),
    Case("no_keys", "sigmoid(s)", n=0),
    Case("no_rows", "sigmoid(s)", m=0),
    Case("wide", SILU, m=37, n=53, wide=True, **GROUPED),
    Case("wide_hstu", HSTU, wide=True, **HSTU_TAIL),
    Case("dynamic", SILU, m=37, n=53, dynamic=True),
    Case("dynamic_even", SILU, m=64, n=64, dynamic=True),
    Case("dynamic_hstu", HSTU, dynamic=True, **HSTU_TAIL),
]  # fmt: skip
