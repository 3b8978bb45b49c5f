"""`attention` called directly on a card: dense, jagged and nested, against its formula by the error
rule; the same call inside a compiled model; CUDA graphs; threads.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

import gdpa_inductor
from tests.integration.test_processes import run
from tests.integration.test_threads import PROGRAM
from tests.tolerances import error_of

pytestmark = [pytest.mark.cuda, pytest.mark.direct]
LENGTHS = [200, 0, 65, 300]


def silu(score, b, h, q_idx, kv_idx):
    return F.silu(score)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def nested(values: Tensor, cu: Tensor, **bounds: int) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(values, cu, **bounds)


def operands_of(kind: str, dtype: torch.dtype) -> tuple[list[Tensor], Callable[..., Tensor]]:
    """Leaves, and the call of them. A nested result is its values."""
    cu = torch.tensor([0, *LENGTHS], device="cuda").cumsum(0)
    shape = (2, 4, 257, 64) if kind == "dense" else (sum(LENGTHS), 4, 64)
    leaves = [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in "qkv"]
    operands = {"score_mod": silu, "mask_mod": causal, "scale": 0.125}
    if kind == "jagged":
        operands |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu}

    def call(*flat: Tensor) -> Tensor:
        if kind != "nested":
            return gdpa_inductor.attention(*flat, **operands)
        rows = [nested(x, cu) for x in flat]
        return gdpa_inductor.attention(*rows, **operands).values()

    return leaves, call


def with_gradients(function: Callable[..., Tensor], leaves: list[Tensor]) -> list[Tensor]:
    out = function(*leaves)
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("kind", ["dense", "jagged", "nested"])
@pytest.mark.parametrize("compiled", [False, True], ids=["direct", "compiled"])
def test_error_rule(kind: str, dtype: torch.dtype, compiled: bool) -> None:
    leaves, call = operands_of(kind, dtype)
    options = {"gdpa.profit": False}
    function = torch.compile(call, backend="gdpa", fullgraph=True, options=options)
    counters.clear()
    fused = with_gradients(function if compiled else call, leaves)
    assert counters["gdpa"]["matched"] == 1 and counters["gdpa"]["lowered_cpu"] == 0
    with torch.compiler.set_stance("force_eager"):
        eager = with_gradients(call, leaves)
        exact = with_gradients(call, [x.detach().double().requires_grad_() for x in leaves])
    for name, *three in zip(["out", "dq", "dk", "dv"], fused, eager, exact, strict=True):
        direction = "forward" if name == "out" else "backward"
        assert (problem := error_of(*three, direction=direction)) is None, (name, problem)


def test_a_cuda_graph_of_nested_operands() -> None:
    """Whose longest length is given: while a graph is captured it cannot be read."""
    leaves, _ = operands_of("nested", torch.bfloat16)
    cu = torch.tensor([0, *LENGTHS], device="cuda").cumsum(0)
    rows = [nested(x.detach(), cu, min_seqlen=0, max_seqlen=max(LENGTHS)) for x in leaves]

    def call() -> Tensor:
        return gdpa_inductor.attention(*rows, score_mod=silu, mask_mod=causal).values()

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        wanted = call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        out = call()
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, wanted)


@pytest.mark.slow
def test_sixteen_threads_and_eight_models(tmp_path) -> None:
    results, stderr = run(
        "16", "50", "cuda", program=PROGRAM, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)
    )
    assert results["errors"] == results["warnings"] == results["left"] == [], stderr[-2000:]
    assert results["gdpa"]["matched"] >= 8
