"""Gradients of biases on Hopper, on the card, against the formula in fp64."""

import dataclasses
from collections.abc import Callable, Sequence

import pytest
import torch

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor.kernels.cute import plan  # noqa: E402
from gdpa_inductor.kernels.cute.backward import biases  # noqa: E402
from gdpa_inductor.kernels.cute.backward.launch import backward  # noqa: E402
from gdpa_inductor.operands import Operands  # noqa: E402
from gdpa_inductor.program.score_mod import ScoreMod  # noqa: E402
from tests.gpu.checks import check_gradients, hopper  # noqa: E402, F401
from tests.gpu.test_cute_backward import WIDE, gradients, poisoned  # noqa: E402
from tests.kernels.cute_backward_cases import Case, check_errors, make_call  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Biased:
    """A program with biases, and what it is in torch. biases: what each varies along."""

    program: str
    formula: Callable[..., torch.Tensor]
    biases: tuple[str, ...]

    def call(
        self, batch: int, heads: int, key_heads: int, rows: int, cols: int, dim: int, wide: bool
    ) -> tuple[torch.Tensor, Operands[torch.Tensor]]:
        """The gradient of O and the operands, in bf16; biases in fp32 if they are wide. They have a
        dimension for each of b, h, m, n, of one where they do not vary."""

        def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.randn(shape).to(dtype).cuda()

        sizes, dtype = (batch, heads, rows, cols), torch.float32 if wide else torch.bfloat16
        shapes = [[n if x in axes else 1 for x, n in zip("bhmn", sizes)] for axes in self.biases]
        q, grad = (drawn(batch, heads, rows, dim) for _ in range(2))
        k, v = (drawn(batch, key_heads, cols, dim) for _ in range(2))
        aux = [drawn(*shape, dtype=dtype) for shape in shapes]
        return grad, Operands(q, k, v, aux, (), ScoreMod.parse(self.program), None, None, 0, 0)


def _silu(s: torch.Tensor, *biases: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(sum(biases, s * 0.125))


def _causal(s: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(s * 0.125 + bias).tril()


def _two_heads(s: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return _silu(s, bias) * (torch.arange(s.shape[1], device=s.device) < 2)[:, None, None]


def _outside(s: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu((s + bias) * 0.125, approximate="tanh") * 0.01


ADDED = "silu(add(mul(s,0.125),a0))"
BIASES = {
    "of each score": Biased(f"a0:f[b,h,q_idx,kv_idx]; {ADDED}", _silu, ("bhmn",)),
    "of heads": Biased(f"a0:f[-,h,q_idx,kv_idx]; {ADDED}", _silu, ("hmn",)),
    "of batches": Biased(f"a0:f[b,-,q_idx,kv_idx]; {ADDED}", _silu, ("bmn",)),
    "of positions": Biased(f"a0:f[-,-,q_idx,kv_idx]; {ADDED}", _silu, ("mn",)),
    "of keys": Biased(f"a0:f[b,-,-,kv_idx]; {ADDED}", _silu, ("bn",)),
    "of queries": Biased(f"a0:f[-,h,q_idx,-]; {ADDED}", _silu, ("hm",)),
    "two": Biased(
        "a0:f[-,h,q_idx,kv_idx]; a1:f[b,-,q_idx,kv_idx]; silu(add(add(mul(s,0.125),a0),a1))",
        _silu, ("hmn", "bmn"),
    ),
    "under a mask": Biased(
        "a0:f[-,h,q_idx,kv_idx]; where(le(kv_idx,q_idx),sigmoid(add(mul(s,0.125),a0)),0.0)",
        _causal, ("hmn",),
    ),
    "of some heads": Biased(
        f"a0:f[-,-,q_idx,kv_idx]; where(lt(h,2),{ADDED},0.0)", _two_heads, ("mn",)
    ),
    "scaled with the score": Biased(
        "a0:f[b,h,q_idx,kv_idx]; mul(gelu_tanh(mul(add(s,a0),0.125)),0.01)", _outside, ("bhmn",)
    ),
}  # fmt: skip
# batch, heads, key heads, queries, keys, head dim
SHAPES = {
    "tails": (2, 4, 4, 200, 328, 128),
    "grouped heads, head dim 64": (3, 4, 2, 256, 300, 64),
    "several parts": (20, 4, 4, 512, 1024, 128),
}


def by_autograd(
    tensors: Sequence[torch.Tensor], grad: torch.Tensor, formula: Callable[..., torch.Tensor]
) -> list[list[torch.Tensor]]:
    """The gradients of query, key, value and biases: in their dtypes, and in fp64."""
    results = []
    for widened in (lambda x: x, torch.Tensor.double):
        leaves = [widened(x).detach().requires_grad_() for x in tensors]
        query, *both = leaves[:3]
        group = query.shape[1] // both[0].shape[1]
        key, value = (x.repeat_interleave(group, 1) for x in both)
        out = formula(query @ key.mT, *leaves[3:]).to(value.dtype) @ value
        results.append(list(torch.autograd.grad(out, leaves, grad.to(out.dtype))))
    return results


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize("wide", [False, True], ids=["16 bits", "fp32 bias"])
def test_gradients_of_biases(
    kind: str, shape: str, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shape == "several parts":
        monkeypatch.setattr(biases, "ROOM", 1)
        monkeypatch.setattr(plan, "PLANS", {})  # they keep how calls were divided
    grad, o = BIASES[kind].call(*SHAPES[shape], wide)
    needs = (True,) * (3 + len(o.aux))
    plain = by_autograd(o.differentiable, grad, BIASES[kind].formula)
    with poisoned():
        results = backward(grad, o, needs)
    assert [x.dtype for x in results] == [x.dtype for x in plain[0]]
    check_gradients(results, *plain)
    again = backward(grad, o, needs)
    assert all(map(torch.equal, results, again))


def test_a_tiled_bias_over_many_short_sequences() -> None:
    """Most tiles have no steps, so the warps that multiply run past them as fast as the loads."""
    lengths = tuple(i * 37 % 150 for i in range(200))
    program = "a0:f[b,h,q_idx,kv_idx]; silu(add(mul(s,0.125),a0))"
    case = Case(program, heads=2, rows=lengths, keys=lengths, dims=WIDE, most=(1024, 1024), ctas=3)
    call = make_call(case)
    o = dataclasses.replace(call.operands, aux=[x.bfloat16() for x in call.operands.aux])
    call = dataclasses.replace(call, operands=o)
    for ctas in (0, case.ctas):
        check_errors(gradients(case, call, ctas), case, call)


def test_gradients_of_a_bias_and_shared_keys() -> None:
    case = BIASES["of heads"]
    grad, o = case.call(3, 4, 4, 200, 136, 128, False)
    o = dataclasses.replace(o, key=o.key[:1], value=o.value[:1])
    plain = by_autograd(o.differentiable, grad, case.formula)
    check_gradients(backward(grad, o, (True,) * 4), *plain)


@pytest.mark.parametrize("kind", ["of heads", "of each score", "of keys", "two", "under a mask"])
@pytest.mark.parametrize("wide", [False, True], ids=["16 bits", "fp32 bias"])
def test_some_keys_at_a_time_and_gradients_in_place(
    kind: str, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch or head and 256 keys a launch; each gradient may take the memory of its operand."""
    monkeypatch.setattr(biases, "ROOM", 4 * 320 * 256 * 2)
    monkeypatch.setattr(plan, "PLANS", {})
    grad, o = BIASES[kind].call(4, 2, 2, 320, 648, 128, wide)
    plain, needs = by_autograd(o.differentiable, grad, BIASES[kind].formula), (True,) * 3
    results = []
    for spare in ((), tuple(range(len(o.aux)))):
        own = dataclasses.replace(o, aux=[x.clone() for x in o.aux])
        with poisoned(), torch.no_grad():
            results.append(backward(grad, own, needs + (True,) * len(o.aux), donated=spare))
        assert spare or all(map(torch.equal, own.aux, o.aux))
    check_gradients(results[0], *plain)
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("wide", [False, True], ids=["16 bits", "fp32 bias"])
def test_a_bias_beside_mask_tensors(wide: bool, dim: int) -> None:
    """They are read for each score, and kept as bits."""
    program = ScoreMod.parse(
        "a0:b[-,-,q_idx,kv_idx]; a1:f[-,h,q_idx,kv_idx]; a2:b[b,-,q_idx,kv_idx]; "
        "where(a0,where(a2,silu(add(mul(s,0.125),a1)),0.0),0.0)"
    )
    grad, plain_call = BIASES["of heads"].call(2, 2, 2, 420, 328, dim, wide)
    first = (torch.rand(1, 1, 420, 328) < 0.5).cuda()
    second = (torch.rand(2, 1, 420, 328) < 0.7).cuda()
    aux = [first, plain_call.aux[0], second]
    o = dataclasses.replace(plain_call, aux=aux, program=program)

    masked = lambda s, bias: _silu(s, bias) * (first & second)
    plain = by_autograd(plain_call.differentiable, grad, masked)
    with poisoned():
        results = backward(grad, o, (True, True, True, False, True, False))
    check_gradients(results, *plain)
