"""The error rule, whether or not the compiler makes one instruction of a product and a sum.

Our templates ask for it (`enable_fp_fusion`), Triton's interpreter does not do it, and which
product is fused is the compiler's choice. So every program is computed in all three ways, in torch.
"""

import pytest
import torch

from gdpa_inductor._compat import lowering
from gdpa_inductor.lowerings.triton import emit
from gdpa_inductor.program.emission import emitted
from gdpa_inductor.program.expr import Expr, fold
from gdpa_inductor.program.fast import gated
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.reference import program_leaves
from tests.activations import ACTIVATIONS
from tests.tolerances import error_of

from .test_emit import play

# Where the product may stand that is fused with a sum, best first.
WAYS = {"apart": (), "the first product": (0, 1), "the second product": (1, 0)}


@pytest.fixture(autouse=True)
def ops_by_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lowering, "inductor_op", play)


class Rounding:
    """The `apply` of `fold` as a kernel computes in fp32. fused: How many sums have a product."""

    def __init__(self, fast: bool, places: tuple[int, ...]) -> None:
        self.plain, self.places = emit.emitter(fast), places
        self.factors: dict[Expr, list[torch.Tensor]] = {}
        self.fused = 0

    def __call__(self, node: Expr, values: list[torch.Tensor]) -> torch.Tensor:
        if node.kind == "f" and node.op == "mul":
            self.factors[node] = values
        if node.kind == "f" and node.op in ("add", "sub"):
            for place in self.places:
                if node.args[place] in self.factors:
                    return self._as_one(node, values, place)
        return self.plain(node, values)

    def _as_one(self, node: Expr, values: list[torch.Tensor], place: int) -> torch.Tensor:
        """The product of two fp32 numbers is exact in fp64."""
        self.fused += 1
        terms = [value.double() for value in values]
        first, second = self.factors[node.args[place]]
        terms[place] = first.double() * second.double()
        return (terms[0] + terms[1] if node.op == "add" else terms[0] - terms[1]).float()


def in_kernel(
    term: Expr, program: ScoreMod, score: torch.Tensor, grad: torch.Tensor, way: str, fast: bool
) -> tuple[torch.Tensor, int]:
    """A term as `emit.subgraph` writes it, and how many of its sums are fused."""
    (term,) = emitted([gated(term, program.weight) if fast else term], emit.PLAIN, fast)
    rounding = Rounding(fast, WAYS[way])
    leaf = program_leaves(score.float(), [], [], program, grad.float())
    return fold([term], leaf, rounding)[0].to(score.dtype), rounding.fused


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_error_rule_holds(name: str, dtype: torch.dtype, way: str):
    function, program = ACTIVATIONS[name].function, ScoreMod.parse(ACTIVATIONS[name].program)
    score = torch.linspace(-30, 30, 4001).to(dtype).unique().requires_grad_()
    grad = torch.linspace(-2, 2, len(score)).flip(0).to(dtype)

    def by_torch(score: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = function(score)
        return value.detach(), torch.autograd.grad(value, score, grad.to(score.dtype))[0]

    eager, exact = by_torch(score), by_torch(score.detach().double().requires_grad_())
    terms = (program.weight, program.gradients.score)
    for i, direction in enumerate(("forward", "backward")):
        result, _ = in_kernel(terms[i], program, score.detach(), grad, way, dtype != torch.float32)
        fault = error_of(result, eager[i], exact[i], direction=direction)
        assert fault is None, f"{direction}: {fault}"


def test_products_are_fused():
    """Else the ways above would be one: silu's weight is u·t + u, its slope p·(c - h) + h."""
    score = torch.linspace(-3, 3, 101)
    program = ScoreMod.parse("silu(mul(s,0.3))")
    for term in (program.weight, program.gradients.score):
        apart, none = in_kernel(term, program, score, score, "apart", True)
        fused, some = in_kernel(term, program, score, score, "the first product", True)
        assert none == 0 and some > 0 and not torch.equal(apart, fused)
