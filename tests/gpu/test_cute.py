"""What the CuTe kernels have in common with those of other GPUs: the host wrapper, the emission of
score programs, the order and the classes of tiles, the cache of compiled kernels."""

import functools

import pytest
import torch

from gdpa_inductor.program.score_mod import ScoreMod
from tests.tolerances import error_of

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor.kernels.cute import launch, plan  # noqa: E402
from gdpa_inductor.kernels.cute.launcher import Launcher  # noqa: E402
from gdpa_inductor.kernels.cute.runtime import Kernel, exported  # noqa: E402
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config  # noqa: E402
from gdpa_inductor.ops import operands_of  # noqa: E402
from tests.gpu import rowwise  # noqa: E402


def forward(*tensors) -> torch.Tensor:
    """The operator's operands in order, and no options. The sequences are dealt as they come: the
    kernel that ranks them would be one for Blackwell."""
    operands = operands_of(*tensors)
    cu = operands.cu_seqlens_q
    order = None if cu is None else torch.arange(len(cu) - 1, device="cuda")
    return launch.forward(operands, kind=Sm100Config, order=order)


OFFSETS = [0, 0, 300, 301, 556, 1000]
PROGRAMS = {
    "silu": ("silu(mul(s,0.125))", []),
    "gelu_tanh": ("gelu_tanh(mul(s,0.125))", []),
    "relu²": ("pow(relu(mul(s,0.125)),2.0)", []),
    "mish": ("mish(mul(s,0.125))", []),
    "softplus, scaled": ("mul(softplus(s,1.0,20.0),div(1.0,float(i0)))", []),
    "sigmoid, causal, bias": (
        "a0:f[h,q_idx,kv_idx]; where(ge(q_idx,kv_idx),sigmoid(add(mul(s,0.125),a0)),0.0)",
        [("float32", (4, 512, 512))],
    ),
    "targets": (
        "a0:i[b]; where(or(eq(q_idx,kv_idx),and(gt(q_idx,kv_idx),lt(kv_idx,a0))),silu(s),0.0)",
        [("int64", (5,))],
    ),
}  # fmt: skip


@pytest.fixture
def plain_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    major, minor = torch.cuda.get_device_capability()
    suffix = "a" if major >= 9 else ""
    compiled = functools.cache(
        lambda config: rowwise.compiled(config, f"sm_{major}{minor}{suffix}")
    )
    launcher = functools.cache(lambda config: Launcher(Kernel(exported(compiled(config))), config))
    monkeypatch.setattr(plan, "PLANS", {})  # plans keep their launchers
    monkeypatch.setattr(launch, "compiled", compiled)
    monkeypatch.setattr(launch, "launcher", launcher)


def operands(name: str, jagged: bool, dtype: torch.dtype) -> tuple:
    text, specs = PROGRAMS[name]
    shape = (1000, 4, 64) if jagged else (5, 4, 300, 64)
    matrices = [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3)]
    aux = [
        torch.randn(size, device="cuda") if kind == "float32"
        else torch.randint(0, 200, size, device="cuda")
        for kind, size in specs
    ]  # fmt: skip
    program = ScoreMod.parse(text)
    lengths = (torch.tensor(OFFSETS, device="cuda", dtype=torch.int32),) * 2 + (512, 512)
    if not jagged:
        aux = [x[:, :300, :300] if x.dim() == 3 else x for x in aux]
    return (*matrices, aux, [300] * program.num_scalars, str(program)), lengths if jagged else ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("jagged", [False, True], ids=["dense", "jagged"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_kernel_of_ours_matches_the_reference(plain_kernel, name, jagged, dtype) -> None:
    tensors, lengths = operands(name, jagged, dtype)
    fused = forward(*tensors, *lengths)
    (*matrices, aux, scalars, text) = tensors
    eager = torch.ops.gdpa.attention(*tensors, "", *lengths)
    doubled = [x.double() for x in matrices]
    wide = [x.double() if x.is_floating_point() else x for x in aux]
    exact = torch.ops.gdpa.attention(*doubled, wide, scalars, text, "", *lengths)
    # The reference computes in fp32: what is left is the rounding of the output and of tanh.
    noise = 2**-8 * exact.abs().max().item()
    assert not error_of(fused, eager, exact, direction="forward", noise=noise)


def test_a_configuration_is_compiled_once(plain_kernel) -> None:
    for rows in (100, 200):
        q, k, v = (torch.randn(2, 4, rows, 64, device="cuda").bfloat16() for _ in range(3))
        forward(q, k, v, [], [], "silu(s)")
    assert launch.compiled.cache_info().misses == 1


def test_nan_of_neighbours_is_not_read(plain_kernel) -> None:
    (q, k, v, *rest), lengths = operands("silu", True, torch.bfloat16)
    clean = forward(q, k, v, *rest, *lengths)
    for x in (q, k, v):
        x[300:301] = float("nan")  # sequence 2
    poisoned = forward(q, k, v, *rest, *lengths)
    remaining = torch.cat([torch.arange(300), torch.arange(301, 1000)]).cuda()
    assert torch.equal(clean[remaining], poisoned[remaining])
