"""Every operation of a score program as CuTe code, on the emulator, against its torch meaning."""

import pytest
import torch

pytest.importorskip("cutlass")

from cutlass import Float32, Int32, Int64, cute, range_constexpr

from gdpa_inductor.kernels.cute.emit import PLAIN, values_of, written
from gdpa_inductor.kernels.cute.values import Pair, pair
from gdpa_inductor.program.expr import INSTRUCTIONS, OPS, fold, postorder, torch_apply
from gdpa_inductor.program.score_mod import ScoreMod
from tests.emulator import recording, run
from tests.literals import LITERALS

THREADS = 128
GRID = torch.linspace(-30, 30, 2 * THREADS)
# Programs over s (the grid), m (0..255), n = 2m // 4, b = 1, h = 2, each a use of the operation.
USES = {
    **{name: f"{name}(s)" for name, op in OPS.items() if "f>f" in op.kinds},
    **{name: f"{name}(s,{','.join(map(str, given[-1]))})" for name, given in LITERALS.items()},
    **{name: f"{name}(s,float(q_idx))" for name in ("add", "sub", "mul", "maximum", "minimum")},
    **{name: f"float({name}(sub(kv_idx,q_idx),7))" for name in ("floordiv", "mod")},
    **{name: f"where({name}(kv_idx,100),s,0.5)" for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: f"where({name}(gt(s,1.0),lt(kv_idx,200)),s,2.0)" for name in ("and", "or", "xor")},
    **{name: f"{name}(add(abs(s),0.5))" for name in ("sqrt", "rsqrt", "log", "log1p")},
    **{name: f"{name}(mul(s,0.25))" for name in ("exp", "exp2", "expm1", "sin", "cos")},
    "div": "div(s,add(float(q_idx),1.0))",
    "pow": "pow(add(abs(s),0.5),1.5)",
    "not": "where(not(gt(s,0.0)),s,1.0)",
    "isnan": "where(isnan(div(s,sub(float(kv_idx),float(kv_idx)))),1.0,s)",
    "where": "where(gt(s,0.0),s,mul(s,2.0))",
    "float": "float(add(mul(kv_idx,1000000),i0))",
    "int": "float(int(s))",
    "bool": "where(bool(mod(kv_idx,2)),s,0.0)",
}
# What arithmetic on pairs does with products and constants.
SHAPES = (
    "add(mul(s,0.5),mul(s,0.25))",
    "sub(mul(mul(s,0.5),0.25),s)",
    "sub(s,mul(s,s))",
    "mul(mul(s,s),2.0)",
    "div(silu(add(mul(s,0.125),float(h))),float(i0))",
    "where(and(ge(kv_idx,q_idx),eq(b,1)),silu(s),0.0)",
    "add(1.5,float(h))",
)


class Evaluate:
    """The programs on every element of the grid: x [256] -> out [programs, 256]."""

    def __init__(self, programs: list[ScoreMod], fast: bool) -> None:
        self.programs, self.fast = programs, fast

    @cute.jit
    def __call__(self, x: cute.Pointer, out: cute.Pointer, scalar: Int64):
        self.kernel(x, out, scalar).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, x: cute.Pointer, out: cute.Pointer, scalar: Int64):
        thread, _, _ = cute.arch.thread_idx()
        place, zero = 2 * thread, Int32(scalar) - 9  # the compiler knows no bounds of positions
        mX = cute.make_tensor(x, cute.make_layout(2 * THREADS))
        mOut = cute.make_tensor(out, cute.make_layout(2 * THREADS * len(self.programs)))
        leaves = {
            "s": Pair(mX[place], mX[place + 1]),
            "kv_idx": Pair(place + zero, place + zero + 1),
            "q_idx": Pair(thread + zero),
            "b": Pair(Int32(1)),
            "h": Pair(Int32(2)),
            "scalar": Pair(scalar),
        }
        for i in range_constexpr(len(self.programs)):
            weight = self.programs[i].weight
            terms = written([weight], weight, self.fast)
            (value,) = values_of(terms, lambda node: leaves[node.op])
            lanes = pair(value).lanes
            for lane in range_constexpr(2):
                mOut[2 * THREADS * i + place + lane] = lanes[lane]


def evaluate(programs: list[ScoreMod], fast: bool) -> torch.Tensor:
    x, out = GRID.clone(), torch.full((len(programs), 2 * THREADS), torch.nan)
    pointers = [
        cute.runtime.make_ptr(Float32, t.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
        for t in (x, out)
    ]
    with recording():
        compiled = cute.compile(Evaluate(programs, fast), *pointers, Int64(9))
        run(lambda: compiled(*pointers, Int64(9)), [x, out], schedules=("lazy",))
    return out


def exact(program: ScoreMod) -> torch.Tensor:
    m = torch.arange(2 * THREADS)
    leaves = {
        "s": GRID.double(), "kv_idx": m, "q_idx": m // 2, "b": torch.tensor(1),
        "h": torch.tensor(2), "scalar": torch.tensor(9),
    }  # fmt: skip

    def leaf(node):
        if node.is_const:
            return torch.tensor(node.value, dtype=torch.float64 if node.kind == "f" else None)
        return leaves[node.op]

    (value,) = fold([program.weight], leaf, torch_apply(torch.float64))
    return value.expand(2 * THREADS)


def test_every_operation_has_a_use():
    assert set(PLAIN) < {*OPS, *INSTRUCTIONS}
    # It has test_cute_lookups.py, and no CuTe kernel draws.
    assert {*USES, "lookup", "random16"} == set(OPS)
    for name, text in USES.items():
        assert any(node.op == name for node in postorder([ScoreMod.parse(text).weight])), text


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
def test_operations(fast: bool):
    # Those of sin and cos keep large arguments in local memory, which the emulator does not have.
    texts = [text for name, text in USES.items() if name not in ("sin", "cos")] + [*SHAPES]
    programs = [ScoreMod.parse(text) for text in texts]
    wrong = []
    for text, program, got in zip(texts, programs, evaluate(programs, fast), strict=True):
        want = exact(program)
        # The rule for approximate functions; in full accuracy, a few ulp of fp32.
        allowed = 2.0**-10 if fast else 2.0**-20
        scale = torch.maximum(want.abs(), GRID.abs().clamp(min=1.0) if fast else want.abs())
        close = (got.double() - want).abs() <= allowed * scale + 1e-6 * (not fast)
        close |= (got.isnan() & want.isnan()) | (got.double() == want)
        if not close.all():
            place = int((~close).nonzero()[0])
            wrong.append(f"{text} at {GRID[place]:.4f}: {got[place]}, not {want[place]}")
    assert not wrong, "\n".join(wrong)
