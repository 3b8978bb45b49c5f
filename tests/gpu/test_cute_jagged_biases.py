"""Gradients of biases where a side is jagged, on Hopper, against the formula in fp64."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from tests.tolerances import error_of

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor import lowerings  # noqa: E402
from gdpa_inductor.kernels.cute import plan  # noqa: E402
from gdpa_inductor.kernels.cute.backward import jagged_biases  # noqa: E402
from gdpa_inductor.kernels.cute.backward.launch import backward  # noqa: E402
from gdpa_inductor.operands import Operands, score_shape  # noqa: E402
from gdpa_inductor.program.score_mod import ScoreMod  # noqa: E402
from tests.gpu.checks import captured, check_gradients, hopper  # noqa: E402, F401
from tests.gpu.test_cute_backward import poisoned  # noqa: E402
from tests.gpu.test_cute_biases import ADDED, BIASES  # noqa: E402

DEVICE = "cuda"
Formula = Callable[..., Tensor]


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Of queries and keys, jagged where they are a tuple. most: max_seqlen of both."""

    rows: tuple[int, ...] | int
    keys: tuple[int, ...] | int
    heads: int = 4
    key_heads: int = 4
    dim: int = 128
    most: tuple[int, int] | None = None

    @property
    def batch(self) -> int:
        return next(len(x) for x in (self.rows, self.keys) if isinstance(x, tuple))


MIXED = (200, 0, 130, 1, 328, 77)
SHAPES = {
    "one length a sequence": Lengths(MIXED, MIXED),
    "grouped heads, head dim 64": Lengths(MIXED, MIXED, key_heads=2, dim=64),
    "cut short, other lengths": Lengths(
        (150, 40, 0, 300), (100, 0, 50, 129), key_heads=1, most=(260, 125)
    ),
    "dense keys": Lengths((150, 40, 0, 260), 140),
    "dense queries": Lengths(140, (150, 40, 0, 263), key_heads=2, dim=64),
}


def _targets(s: Tensor, bias: Tensor) -> Tensor:
    """HSTU's: causal, and the last 20 keys are seen by themselves alone."""
    row, col = (torch.arange(n, device=s.device) for n in s.shape[2:])
    past = (col < s.shape[3] - 20)[None] & (col[None] <= row[:, None])
    seen = past | (col[None] == row[:, None])
    return torch.where(seen, torch.nn.functional.silu(s * 0.125 + bias), 0.0)


PLAIN = {
    **BIASES,
    "of heads and keys": dataclasses.replace(
        BIASES["of keys"], program=f"a0:f[-,h,-,kv_idx]; {ADDED}", biases=("hn",)
    ),
    "of heads alone": dataclasses.replace(
        BIASES["of keys"], program=f"a0:f[-,h,-,-]; {ADDED}", biases=("h",)
    ),
    "a scalar": dataclasses.replace(
        BIASES["of keys"], program=f"a0:f[-,-,-,-]; {ADDED}", biases=("",)
    ),
}


@dataclasses.dataclass(frozen=True)
class Call:
    """A call, and the same in plain torch. formula: of the scores of one sequence."""

    grad: Tensor
    operands: Operands[Tensor]
    formula: Formula

    def plain(self, dtype: torch.dtype) -> list[Tensor]:
        """The gradients by autograd, sequence by sequence, in `dtype`; biases have 4 dimensions."""
        o = self.operands
        narrow = dtype == o.query.dtype
        leaves = [
            (x if narrow else x.to(dtype)).detach().requires_grad_() for x in o.differentiable
        ]
        total = [torch.zeros_like(x) for x in leaves]
        for b in range(score_shape(o)[0]):
            q, k, v, grad = (
                self.sequence(x, b, side)
                for x, side in zip((*leaves[:3], self.grad.to(dtype)), "qkkq", strict=True)
            )
            if 0 in (q.shape[1], k.shape[1]):
                continue
            key, value = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
            sizes = (q.shape[1], k.shape[1])
            biases = [of_sequence(x, b, sizes) for x in leaves[3:]]
            weight = self.formula((q @ key.mT)[None], *biases)[0]
            results = torch.autograd.grad(
                weight.to(value.dtype) @ value, leaves, grad, allow_unused=True
            )
            total = [x if y is None else x + y for x, y in zip(total, results, strict=True)]
        return total

    def sequence(self, x: Tensor, b: int, side: str) -> Tensor:
        """[H, rows, D] of one sequence."""
        o = self.operands
        cu, most = (
            (o.cu_seqlens_q, o.max_seqlen_q) if side == "q" else (o.cu_seqlens_k, o.max_seqlen_k)
        )
        if cu is None:
            return x[b]
        start, end = int(cu[b]), int(cu[b + 1])
        return x[start : min(end, start + most)].transpose(0, 1)


def of_sequence(bias: Tensor, b: int, sizes: tuple[int, int]) -> Tensor:
    own = bias[b : b + 1] if bias.shape[0] > 1 else bias
    rows, cols = sizes
    own = own[:, :, :rows] if bias.shape[2] > 1 else own
    return own[..., :cols] if bias.shape[3] > 1 else own


def make(
    lengths: Lengths, program: str, formula: Formula, biases: Sequence[str], wide: bool = False
) -> Call:
    """bf16. What no sequence owns is NaN. biases: what each varies along. wide: they are fp32."""
    cu = {
        side: torch.tensor([0, *torch.tensor(x).cumsum(0)], dtype=torch.int32, device=DEVICE)
        for side, x in (("q", lengths.rows), ("k", lengths.keys))
        if isinstance(x, tuple)
    }
    longest = [max(x) if isinstance(x, tuple) else x for x in (lengths.rows, lengths.keys)]
    most = dict(zip("qk", lengths.most or longest, strict=True))

    def matrix(side: str, heads: int) -> Tensor:
        if side not in cu:
            shape = (lengths.batch, heads, most[side], lengths.dim)
        else:
            shape = (int(cu[side][-1]) + 9, heads, lengths.dim)
        values = torch.randn(shape).bfloat16()
        if side in cu:
            values[-9:] = float("nan")
        return values.to(DEVICE)

    sizes = {"b": lengths.batch, "h": lengths.heads, "m": most["q"], "n": most["k"]}
    aux = [torch.randn([sizes[x] if x in axes else 1 for x in "bhmn"]) for axes in biases]
    aux = [(x if wide else x.bfloat16()).to(DEVICE) for x in aux]
    heads, key_heads = lengths.heads, lengths.key_heads
    q, k, v, grad = (matrix(*x) for x in zip("qkkq", (heads, key_heads, key_heads, heads)))
    bounds = [most[x] if x in cu else 0 for x in "qk"]
    lists = (cu.get("q"), cu.get("k"), *bounds)
    return Call(grad, Operands(q, k, v, aux, (), ScoreMod.parse(program), *lists), formula)


def gradients(call: Call, needs: Sequence[bool] | None = None) -> list[Tensor]:
    needs = needs or (True,) * len(call.operands.differentiable)
    with poisoned():
        return backward(call.grad, call.operands, needs)


@pytest.fixture(params=["one by one", "at once"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """How many sequences a launch has."""
    if request.param == "one by one":
        monkeypatch.setattr(jagged_biases, "ROOM", 1)
    monkeypatch.setattr(plan, "PLANS", {})  # they keep how calls were divided
    yield


def check(call: Call, results: list[Tensor]) -> None:
    eager, exact = (call.plain(x) for x in (call.operands.query.dtype, torch.float64))
    assert [x.dtype for x in results] == [x.dtype for x in eager]
    check_gradients(results, eager, exact)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("wide", [False, True], ids=["16 bits", "fp32 bias"])
def test_gradients_of_biases(kind: str, shape: str, wide: bool) -> None:
    """Of a few numbers in fp32 eager's own error is a matter of luck."""
    wide = wide and kind not in ("of heads alone", "a scalar")
    case = PLAIN[kind]
    call = make(SHAPES[shape], case.program, case.formula, case.biases, wide)
    results = gradients(call)
    check(call, results)
    assert all(map(torch.equal, results, gradients(call)))


@pytest.mark.usefixtures("room")
def test_under_the_mask_of_hstu() -> None:
    """The last 20 keys of each sequence are targets. Most tiles are left out."""
    program = (
        "a0:f[-,h,q_idx,kv_idx]; a1:i[b]; "
        "where(or(and(lt(kv_idx,a1),le(kv_idx,q_idx)),eq(kv_idx,q_idx)),"
        "silu(add(mul(s,0.125),a0)),0.0)"
    )
    lengths = SHAPES["one length a sequence"]
    call = make(lengths, BIASES["of heads"].program, _targets, ("hmn",))
    limits = torch.tensor(MIXED, device=DEVICE) - 20
    o = call.operands
    masked = dataclasses.replace(o, program=ScoreMod.parse(program), aux=[*o.aux, limits])
    with poisoned():
        results = backward(call.grad, masked, (True,) * 4 + (False,))
    check(call, results)


TOKENS = {"q": "a0:f[q,h]", "k": "a0:f[k,h]", "q, positions of keys": "a0:f[q,kv_idx]"}


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("name", TOKENS)
def test_a_bias_of_tokens(name: str) -> None:
    """Rows that no sequence owns are NaN, and have no gradient."""
    shape = SHAPES["one length a sequence"]
    call = make(shape, f"a0:f[-,-,-,-]; {ADDED}", PLAIN["a scalar"].formula, ("",))
    total, most = len(call.operands.query), max(MIXED)
    bias = torch.randn(total, shape.heads if name in "qk" else most, device=DEVICE).bfloat16()
    bias[-9:] = float("nan")
    program = ScoreMod.parse(f"{TOKENS[name]}; {ADDED}")
    o = dataclasses.replace(call.operands, aux=[bias], program=program)
    with poisoned():
        *_, results = backward(call.grad, o, (True,) * 4)
    wanted = [tokens(call, bias, name, dtype) for dtype in (torch.bfloat16, torch.float64)]
    wrong = error_of(results, *wanted, direction="backward")
    assert wrong is None, wrong
    assert not results[-9:].any()


def tokens(call: Call, bias: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    """The gradient of a bias of tokens, sequence by sequence."""
    cu, total = call.operands.cu_seqlens_q, torch.zeros_like(bias, dtype=dtype)
    assert cu is not None
    o = call.operands
    for b, (start, end) in enumerate(zip(cu.tolist(), cu[1:].tolist(), strict=False)):
        if start == end:
            continue
        leaf = bias[start:end].to(dtype).requires_grad_()
        q, k, v, grad = (
            call.sequence(x.to(dtype), b, "q") for x in (o.query, o.key, o.value, call.grad)
        )
        added = {"q": lambda x: x.T[:, :, None], "k": lambda x: x.T[:, None]}.get(
            name, lambda x, n=end - start: x[None, :, :n]
        )(leaf)
        weight = torch.nn.functional.silu(q @ k.mT * 0.125 + added)
        (total[start:end],) = torch.autograd.grad(weight @ v, leaf, grad)
    return total


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("kind", ["of heads", "under a mask", "of queries", "of keys"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_sequence_of_nan_or_infinity_changes_no_bit_elsewhere(kind: str, value: float) -> None:
    """Past its ends it adds nothing: what lies there is zero times infinity."""
    case = PLAIN[kind]
    call = make(SHAPES["one length a sequence"], case.program, case.formula, case.biases)
    clean = gradients(call)
    first, end = sum(MIXED[:2]), sum(MIXED[:3])
    rows = MIXED[2]
    for x in (call.grad, call.operands.value):
        x[first:end] = value
    spoiled = gradients(call)
    for before, after in zip(clean[:3], spoiled[:3], strict=True):
        assert torch.equal(before[:first], after[:first])
        assert torch.equal(before[end:], after[end:])
    mine = torch.zeros(clean[3].shape, dtype=torch.bool, device=DEVICE)
    mine[slice(2, 3) if "b" in case.biases[0] else slice(None), :, :rows, :rows] = True
    assert torch.equal(clean[3][~mine], spoiled[3][~mine])
    assert not spoiled[3][mine].isfinite().all()


def test_what_no_sequence_reaches_has_no_gradient() -> None:
    """Also where all is stored by one launch, and none of it was cleared."""
    case = PLAIN["of heads"]
    call = make(Lengths((70, 30), (50, 60), most=(300, 400)), case.program, case.formula, ("hmn",))
    results = gradients(call)[3]
    assert (results[..., :30, :50] != 0).float().mean() > 0.9  # some sums of two cancel
    assert not results[..., 70:, :].any() and not results[..., :, 60:].any()
    assert not results[..., 30:, 50:].any()


@pytest.mark.usefixtures("room")
def test_only_the_gradient_of_a_bias() -> None:
    case = PLAIN["of positions"]
    call = make(SHAPES["one length a sequence"], case.program, case.formula, case.biases)
    (results,) = gradients(call, (False, False, False, True))
    assert torch.equal(results, gradients(call)[3])


@pytest.mark.usefixtures("room")
def test_in_a_cuda_graph_lengths_may_change() -> None:
    """No length is read on the host."""
    case = PLAIN["of heads"]
    call = make(Lengths((300, 200, 100), (300, 200, 100)), case.program, case.formula, ("hmn",))
    o, needs = call.operands, (True,) * 4
    backward(call.grad, o, needs)
    graph, results = captured(lambda: backward(call.grad, o, needs))
    assert o.cu_seqlens_q is not None and o.cu_seqlens_k is not None
    for lengths in ((100, 200, 300), (0, 290, 17), (300, 200, 100)):
        cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
        for offsets in (o.cu_seqlens_q, o.cu_seqlens_k):
            offsets.copy_(cu)
        for x in results:
            x.fill_(float("nan"))
        graph.replay()
        assert all(map(torch.equal, results, backward(call.grad, o, needs)))


def test_the_same_bits_each_time_on_a_full_card() -> None:
    """Several launches, while the memory that they store to is used again."""
    lengths = tuple(2048 - 97 * i for i in range(16))
    case = PLAIN["under a mask"]
    call = make(Lengths(lengths, lengths), case.program, case.formula, case.biases)
    first = gradients(call)
    assert all(x.isfinite().all() for x in first)
    for _ in range(20):
        assert all(map(torch.equal, gradients(call), first))


def test_a_compiled_model_takes_the_kernels() -> None:
    """As large as it has to be for that; compared with Triton's gradient."""
    lowerings.register()
    lengths = tuple(2048 - 61 * i for i in range(16))
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=DEVICE)
    operands = [torch.randn(sum(lengths), 8, 128, device=DEVICE).bfloat16() for _ in range(3)]
    operands.append(torch.randn(8, 2048, 2048, device=DEVICE).bfloat16())
    program, results = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.088),a0))", {}

    def run(options: str, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return torch.ops.gdpa.attention(
            query, key, value, [bias], [], program, options, cu, cu, 2048, 2048
        )

    for options, taken in (("", "cute"), ("kernel=triton", "triton")):
        torch._dynamo.reset()
        counters.clear()
        leaves = [x.clone().requires_grad_() for x in operands]
        out = torch.compile(run, fullgraph=True)(options, *leaves)
        results[taken] = torch.autograd.grad(out.float().square().sum(), leaves)
        assert counters["gdpa"][f"lowered_{taken}"] == 2
    for mine, other in zip(results["cute"], results["triton"], strict=True):
        scale = other.float().abs().max()
        assert (mine.float() - other.float()).abs().max() < 0.02 * scale
