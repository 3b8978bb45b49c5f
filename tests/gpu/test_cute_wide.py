"""The Hopper forward at head dims above 128, on the card, against the formula in fp64."""

import pytest
import torch

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor import gdpa_backend  # noqa: E402
from gdpa_inductor._compat import dynamo  # noqa: E402
from gdpa_inductor.kernels.cute.plan import plan_of  # noqa: E402
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config  # noqa: E402
from tests.gpu.checks import check_step, hopper  # noqa: E402, F401
from tests.gpu.test_cute_forward import (  # noqa: E402
    ALL,
    BATCH,
    CAUSAL_BIAS,
    HEADS,
    JAGGED,
    ROWS,
    TWO,
    WINDOW,
    attend,
    check_forward,
    forward,
    same_bits,
    step,
)
from tests.kernels.cute_cases import (  # noqa: E402
    BF16,
    CAUSAL,
    F16,
    SELF,
    SILU,
    Case,
    check_integers,
    check_neighbours,
)

GELU, NO_KEYS = "gelu_tanh(mul(s,0.088))", (100, 300, 140, 130, 1, 2)
DIMS = ((136, 136), (160, 160), (192, 192), (224, 224), (256, 256), (192, 128), (256, 64),
        (64, 256), (8, 136), (256, 8), (200, 248))  # fmt: skip

CASES = (
    *(Case(f"D {d}, Dv {dv}", d=d, dv=dv, m=600, n=1100, b=2, h=3, ctas=5) for d, dv in DIMS),
    *(Case(f"fp16, D {d}, Dv {dv}", GELU, d=d, dv=dv, m=328, n=700, h=4, hk=2, dtype=F16, ctas=3)
      for d, dv in DIMS),
    *(Case(f"causal, D {d}, Dv {dv}", CAUSAL.format(SILU), d=d, dv=dv, m=1000, n=1000, h=3, ctas=4)
      for d, dv in DIMS),
    *(Case(f"{m} rows", d=256, m=m, n=600, h=4, hk=2, ctas=3) for m in ROWS),
    *(Case(f"{n} keys", "sigmoid(s)", d=256, dv=192, m=300, n=n, h=4, ctas=3) for n in ROWS),
    *(Case(f"{m} rows, causal", CAUSAL.format(SILU), d=192, dv=128, m=m, n=m, h=3) for m in ROWS),
    Case("window", WINDOW, d=256, m=1000, n=1000, h=2, ctas=2),
    Case("causal, fewer rows", CAUSAL.format(SILU), d=256, m=300, n=1000, h=2),
    Case("causal, fewer keys", CAUSAL.format("sigmoid(s)"), d=256, m=1000, n=300, h=2),
    Case("a CTA a tile", d=256, m=1000, n=1100, b=4, h=8, ctas=0),
    Case("exact functions", "gelu(mul(s,0.088))", d=256, m=300, n=300, fast=False),
    Case("rows side by side", d=256, m=300, n=300, h=4, view="bnhd"),
    Case("bias of heads", HEADS, d=256, m=600, n=1104, b=2, h=3, ctas=5),
    Case("bias of all", ALL, d=192, dv=128, m=300, n=520, b=2, h=2),
    Case("bias of batches, fp16", BATCH, d=160, m=256, n=328, b=3, h=2, dtype=F16),
    Case("bias by elements", HEADS, d=256, m=200, n=301, h=2),
    Case("bias in fp32", HEADS, d=256, m=200, n=304, h=2, aux=(torch.float32,)),
    Case("causal bias", CAUSAL_BIAS, d=256, m=520, n=520, h=2),
    Case("two biases", TWO, d=224, m=200, n=328, b=2, h=2, aux=(BF16, torch.float32)),
    Case("bias of rows", "a0:f[q,h]; silu(add(mul(s,0.1),a0))", d=256, h=2, **JAGGED),
    Case("jagged", d=256, h=4, hk=2, q_lengths=ROWS, k_lengths=ROWS, ctas=4),
    Case("jagged, other keys", d=192, dv=128, h=2, q_lengths=ROWS, k_lengths=ROWS[::-1], ctas=0),
    Case("jagged, causal", CAUSAL.format(SILU), d=256, h=2, q_lengths=ROWS, k_lengths=ROWS),
    Case("jagged, most 193", d=256, h=2, q_lengths=ROWS, k_lengths=ROWS, most=193, ctas=2),
    Case("jagged, bias", HEADS, d=256, h=2, q_lengths=ROWS, k_lengths=ROWS, ctas=3),
    Case("jagged keys", d=256, b=11, m=400, h=2, k_lengths=ROWS, ctas=5),
    Case("no keys", "sigmoid(s)", d=256, q_lengths=NO_KEYS, k_lengths=(0, 200, 0, 100, 0, 0)),
    Case("seeds", d=256, dv=136, b=4, m=32, shared="q", k_lengths=SELF),
    Case("short keys", d=200, b=4, n=192, q_lengths=SELF, offsets=torch.int64),
)  # fmt: skip


# The channels of V go in slices of up to 256.
SLICED = (
    *(Case(f"Dv {dv}", d=128, dv=dv, m=600, n=1100, b=2, h=2, ctas=5)
      for dv in (320, 512, 600, 1024, 1536)),
    Case("Dv 512, causal, fp16", CAUSAL.format(SILU), d=64, dv=512, m=1000, n=1000, h=3, dtype=F16),
    Case("Dv 512, rows side by side", d=128, dv=512, m=300, n=300, h=4, view="bnhd"),
    Case("Dv 1024, bias", HEADS, d=128, dv=1024, m=600, n=1104, h=2, ctas=5),
    Case("Dv 1024, bias in fp32", HEADS, d=128, dv=1024, m=200, n=304, h=2, aux=(torch.float32,)),
    Case("Dv 512, jagged", d=128, dv=512, h=4, hk=2, q_lengths=ROWS, k_lengths=ROWS, ctas=4),
    Case("Dv 512, no keys", "sigmoid(s)", d=192, dv=512, q_lengths=NO_KEYS,
         k_lengths=(0, 200, 0, 100, 0, 0)),
)  # fmt: skip


@pytest.mark.parametrize("case", [*CASES, *SLICED], ids=lambda case: case.name)
def test_forward(case: Case) -> None:
    o = case.operands()
    config = plan_of(o, True, True, Sm90Config).config
    assert config.overlaid and o.value.shape[-1] % config.value_dim == 0
    check_forward(case, o)


@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_exact_on_integers(dims: tuple[int, int]) -> None:
    check_integers(forward, d=dims[0], dv=dims[1], m=300, n=300)


def test_neighbours_do_not_leak() -> None:
    check_neighbours(forward, 256)


@pytest.mark.parametrize(
    "case",
    [
        Case("bits", d=256, m=1100, n=1300, h=3, b=2, ctas=0),
        Case("bits of 192, 128", d=192, dv=128, m=1100, n=1300, h=3, b=2, ctas=0),
        Case("bits of a bias", HEADS, d=256, m=1100, n=1304, h=3, b=2, ctas=0),
        Case("bits of jagged", d=256, h=2, q_lengths=ROWS, k_lengths=ROWS, ctas=0),
    ],
    ids=lambda case: case.name,
)  # fmt: skip
def test_the_same_bits_each_time(case: Case) -> None:
    same_bits(case)


def test_training_has_the_forward_here_and_the_backward_of_triton() -> None:
    """Asked for by name: the backward takes head dims up to 128."""
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 300, 192, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    direction = torch.randn_like(inputs[0])

    dynamo.counters.clear()
    compiled = torch.compile(
        attend, backend=gdpa_backend, options={"gdpa.kernel": "cute", "gdpa.profit": False}
    )
    fused = step(compiled, inputs, direction)
    results = dynamo.counters["gdpa"]
    assert (results["lowered_cute"], results["lowered_triton"]) == (1, 1)
    wide = step(attend, [x.double() for x in inputs], direction.double())
    check_step(fused, step(attend, inputs, direction), wide)


@pytest.mark.parametrize("training", [False, True])
def test_gated_attention_in_slices(training: bool) -> None:
    """One head, and values of 1024 channels: its backward is in chunks."""
    torch.manual_seed(0)
    inputs = [
        torch.randn(2, 1, 1000, d, device="cuda", dtype=torch.bfloat16) for d in (128, 128, 1024)
    ]
    wide, direction = [x.double() for x in inputs], torch.randn_like(inputs[2])

    def run(function, tensors) -> list[torch.Tensor]:
        if training:
            return step(function, tensors, direction.to(tensors[0].dtype))
        with torch.no_grad():
            return [function(*tensors)]

    dynamo.counters.clear()
    compiled = torch.compile(
        attend, backend=gdpa_backend, options={"gdpa.kernel": "cute", "gdpa.profit": False}
    )
    fused, again = run(compiled, inputs), run(compiled, inputs)
    assert all(map(torch.equal, fused, again))
    lowered = dynamo.counters["gdpa"]
    assert (lowered["lowered_cute"], lowered["lowered_chunked"]) == (1, int(training))
    check_step(fused, run(attend, inputs), run(attend, wide))
