"""On a GPU: tables that a program looks up inside of the kernels, and their gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import peak_extra_bytes
from gdpa_inductor import lowerings
from gdpa_inductor.lowerings.triton import lower
from tests.gpu.checks import check_bits, check_step

pytestmark = pytest.mark.cuda
B, H, N, D, T = 3, 4, 300, 64, 65
KERNELS = ("triton", "auto")
LENGTHS = (200, 0, 300, 1, 77)


def distance(m: int, n: int) -> Tensor:
    return torch.arange(m, device="cuda")[:, None] - torch.arange(n, device="cuda")


def position(m: int, n: int, table: Tensor) -> Tensor:
    return table[:, distance(m, n) + N - 1]


def buckets(m: int, n: int, table: Tensor) -> Tensor:
    return table[(distance(m, n).abs() // 16).clamp(max=T - 1)].movedim(-1, 0)


def time(m: int, n: int, index: Tensor, table: Tensor) -> Tensor:
    return table[index.long()][:, None]


def time_of_heads(m: int, n: int, index: Tensor, table: Tensor) -> Tensor:
    return table[:, index.long()].movedim(1, 0)


def both(m: int, n: int, near: Tensor, index: Tensor, table: Tensor) -> Tensor:
    return position(m, n, near) + time_of_heads(m, n, index, table)


@dataclass(frozen=True)
class Looked:
    """operands: The shape of each; the index is of uint8. bias: From sizes and operands."""

    program: str
    operands: dict[str, tuple[int, ...]]
    bias: Callable[..., Tensor]
    causal: bool = False


NEAR, INDEX = {"near": (H, 2 * N - 1)}, {"index": (B, N, N)}
SCORE = "add(mul(s,0.125),{})"
AT_DISTANCE = f"lookup(a0,add(sub(q_idx,kv_idx),{N - 1}))"
BOTH = f"add(add(mul(s,0.125),{AT_DISTANCE}),lookup(a2,a1))"
OF_BOTH = {**NEAR, **INDEX, "table": (H, T)}
CASES = {
    "position": Looked(f"a0:f[h,t]; silu({SCORE.format(AT_DISTANCE)})", NEAR, position),
    "buckets": Looked(
        "a0:f[t,h]; "
        f"silu({SCORE.format(f'lookup(a0,minimum(floordiv(abs(sub(q_idx,kv_idx)),16),{T - 1}))')})",
        {"table": (T, H)}, buckets,
    ),
    "time": Looked(
        f"a0:i[b,q_idx,kv_idx]; a1:f[t]; silu({SCORE.format('lookup(a1,a0)')})",
        {**INDEX, "table": (T,)}, time,
    ),
    "time of heads": Looked(
        f"a0:i[b,q_idx,kv_idx]; a1:f[h,t]; silu({SCORE.format('lookup(a1,a0)')})",
        {**INDEX, "table": (H, T)}, time_of_heads,
    ),
    "both": Looked(
        f"a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[h,t]; silu({BOTH})", OF_BOTH, both,
    ),
    "both, causal": Looked(
        "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[h,t]; "
        f"where(ge(q_idx,kv_idx),silu({BOTH}),0.0)", OF_BOTH, both, causal=True,
    ),
}  # fmt: skip


def attend(case: Looked, q: Tensor, k: Tensor, v: Tensor, *operands: Tensor) -> Tensor:
    """Unfused, of dense operands [B,H,·,D]."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    bias = case.bias(q.shape[2], k.shape[2], *operands)
    weight = F.silu(q @ k.mT * 0.125 + bias)
    weight = weight.tril() if case.causal else weight
    return weight.to(v.dtype) @ v


def attend_jagged(case: Looked, q: Tensor, k: Tensor, v: Tensor, *operands: Tensor) -> Tensor:
    """The same of each sequence of LENGTHS."""
    results = []
    parts = zip(*(x.split(LENGTHS) for x in (q, k, v)), strict=True)
    for b, matrices in enumerate(parts):
        n = LENGTHS[b]
        own = [x[b : b + 1, :n, :n] if x.dtype == torch.uint8 else x for x in operands]
        dense = (x.transpose(0, 1)[None] for x in matrices)
        results.append(attend(case, *dense, *own)[0].transpose(0, 1))
    return torch.cat(results)


def fused(case: Looked, kernel: str, jagged: bool = False, **how: bool) -> Callable[..., Tensor]:
    """By the operator, compiled."""
    lowerings.register()
    torch._dynamo.reset()
    options = f"kernel={kernel},strict=True"

    def function(q: Tensor, k: Tensor, v: Tensor, *operands: Tensor) -> Tensor:
        lengths = (ends, ends, N, N) if jagged else (None, None, 0, 0)
        leading = (q, k, v, list(operands), [], case.program, options)
        return torch.ops.gdpa.attention(*leading, *lengths)

    ends = torch.tensor([0, *LENGTHS]).cumsum(0).cuda()
    return torch.compile(function, backend="inductor", **how)


def make(
    case: Looked,
    dtype: torch.dtype,
    n: int = N,
    jagged: bool = False,
    key_heads: int = H,
    learned: torch.dtype = torch.float32,
) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, device="cuda", generator=generator)
    shapes = [(sum(LENGTHS), x, D) if jagged else (B, x, n, D) for x in (H, *[key_heads] * 2)]
    results = [draw(*shape).to(dtype) for shape in shapes]
    for name, shape in case.operands.items():
        if name == "index":
            shape = (len(LENGTHS) if jagged else B, n, n)
            index = torch.randint(T, shape, device="cuda", generator=generator)
            results.append(index.to(torch.uint8))
        else:
            results.append(draw(*shape).to(learned))
    return results


def step(function: Callable[..., Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """The output, and the gradients of all operands but the index."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
    out = function(*leaves)
    generator = torch.Generator("cuda").manual_seed(1)
    direction = torch.randn(out.shape, device="cuda", generator=generator).to(out.dtype)
    wanted = [x for x in leaves if x.requires_grad]
    return [out.detach(), *torch.autograd.grad(out, wanted, direction)]


def check(
    case: Looked, function: Callable[..., Tensor], tensors: list[Tensor], jagged: bool = False
) -> None:
    formula = attend_jagged if jagged else attend
    exact = [x.double() if x.is_floating_point() else x for x in tensors]
    run = lambda operands: step(lambda *leaves: formula(case, *leaves), operands)
    check_step(step(function, tensors), run(tensors), run(exact))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_error_rule(name: str, kernel: str) -> None:
    case = CASES[name]
    check(case, fused(case, kernel), make(case, torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_error_rule_of_other_dtypes(dtype: torch.dtype) -> None:
    case = CASES["both"]
    check(case, fused(case, "triton"), make(case, dtype))


@pytest.mark.parametrize("learned", [torch.float32, torch.bfloat16], ids=str)
def test_grouped_heads(learned: torch.dtype) -> None:
    case = CASES["both, causal"]
    tensors = make(case, torch.bfloat16, key_heads=2, learned=learned)
    check(case, fused(case, "triton"), tensors)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["both", "position"])
def test_jagged(name: str, kernel: str) -> None:
    case = CASES[name]
    check(case, fused(case, kernel, jagged=True), make(case, torch.bfloat16, jagged=True), True)


def test_sizes_that_vary() -> None:
    case = CASES["both, causal"]
    function = fused(case, "triton", dynamic=True)
    for n in (N, 128, 211):
        check(case, function, make(case, torch.bfloat16, n=n))


@pytest.mark.parametrize("jagged", [False, True], ids=["dense", "jagged"])
def test_equal_bits(jagged: bool) -> None:
    case = CASES["both, causal"]
    function, tensors = fused(case, "triton", jagged), make(case, torch.bfloat16, jagged=jagged)
    check_bits(lambda: step(function, tensors))


@pytest.mark.parametrize("name", ["time", "time of heads"])
def test_shares(name: str) -> None:
    """Terms are stored for a part of the batch or the heads at a time."""
    case = CASES[name]
    tensors = make(case, torch.bfloat16)
    with mock.patch.object(lower, "STORED", 4 * N * N):
        function = fused(case, "triton")
        check(case, function, tensors)
        check_bits(lambda: step(function, tensors))


def surrounded(x: Tensor) -> Tensor:
    """The operand in the middle of NaN, or of places outside of the table."""
    poison = 255 if x.dtype == torch.uint8 else torch.nan
    room = torch.full((x.numel() + 8192,), poison, device="cuda").to(x.dtype)
    inner = room[4096:-4096].view(x.shape)
    return inner.copy_(x)


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_beside_the_operands_is_read(kernel: str) -> None:
    case = CASES["both, causal"]
    function, tensors = fused(case, kernel), make(case, torch.bfloat16)
    clean, poisoned = step(function, tensors), step(function, [surrounded(x) for x in tensors])
    assert all(map(torch.equal, clean, poisoned))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_place_outside_is_nan(kernel: str) -> None:
    case = CASES["time"]
    tensors = make(case, torch.bfloat16)
    tensors[3][:] = tensors[3] % 8
    tensors[3][1, 5, 7] = T
    out, *_, grad = step(fused(case, kernel), tensors)
    assert out[1, :, 5].isnan().all() and out.isnan().sum() == H * D
    assert grad[:8].isfinite().all() and not grad[8:].any()


def test_positions_store_no_scores() -> None:
    """128 MiB of scores in bf16; sums along diagonals take less than half of them."""
    n = 2048
    program = f"a0:f[h,t]; silu(add(mul(s,0.125),lookup(a0,add(sub(q_idx,kv_idx),{n - 1}))))"
    case = Looked(program, {"near": (H, 2 * n - 1)}, position)
    shape = (4, H, n, D)
    tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    tensors.append(torch.randn(H, 2 * n - 1, device="cuda"))
    function = fused(case, "triton")
    step(function, tensors)
    assert peak_extra_bytes(lambda: step(function, tensors), "cuda") < 100 << 20
