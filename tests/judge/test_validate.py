"""The judge on graphs that were rewritten rightly, and then tampered with: each kind of wrong."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor.graphs import copy_graph
from gdpa_inductor.judge import judged
from gdpa_inductor.options import Options
from gdpa_inductor.patterns import rewrite_graph

ALONE = Options(profit=False, judge=False)
B, H, N, M, D = 2, 3, 7, 5, 4


def heads(*, grad: bool = True) -> list[torch.Tensor]:
    return [torch.randn(B, H, n, D, requires_grad=grad) for n in (N, M, M)]


def verdicts(function: Callable, inputs: list, tamper: Callable | None = None) -> list:
    """What the judge says of every graph of a function, the rewritten one tampered with."""
    found = []

    def backend(gm, _):
        before = copy_graph(gm)
        matches = rewrite_graph(gm, options=ALONE).matches
        assert matches
        if tamper is not None:
            tamper(gm.graph)
            gm.recompile()
        found.append(judged(before, gm, dict(match.stands_for for match in matches)))
        return before.forward

    torch.compile(function, backend=backend)(*inputs)
    return found


def fused(graph: torch.fx.Graph) -> torch.fx.Node:
    (node,) = (n for n in graph.nodes if n.target is torch.ops.gdpa.attention.default)
    return node


def with_argument(position: int, value: object) -> Callable:
    """Give the fused call another argument; a function makes it from the old one and the graph."""

    def tamper(graph: torch.fx.Graph) -> None:
        node = fused(graph)
        args = list(node.args)
        args[position] = value(args[position], graph) if callable(value) else value
        node.args = tuple(args)

    return tamper


def called(graph: torch.fx.Graph, at: torch.fx.Node, target: object, *args: object):
    with graph.inserting_before(at):
        return graph.call_function(target, args)


def plain(q, k, v):
    return F.silu(q @ k.mT * 0.5) @ v


def masked(q, k, v, lens, bias):
    mask = torch.arange(M) < lens[:, None, None, None]
    return torch.where(mask, F.relu(q @ k.mT + bias), 0.0) @ v


def masked_inputs() -> list[torch.Tensor]:
    return [*heads(), torch.tensor([2, 5]), torch.randn(N, M, requires_grad=True)]


def test_right_rewrites_pass():
    assert verdicts(plain, heads()) == [None]
    assert verdicts(plain, heads(grad=False)) == [None]
    assert verdicts(masked, masked_inputs()) == [None]


def program(text: str) -> Callable:
    return with_argument(5, text)


WRONG_PROGRAMS = {
    "another scale": "silu(mul(s,0.25))",
    "another activation": "relu(mul(s,0.5))",
    "a gradient cut": "silu(detach(mul(s,0.5)))",
    "a mask that is not there": "where(le(m,n),silu(mul(s,0.5)),0.0)",
    "a mask of one place": "where(and(eq(n,0),eq(m,0)),0.0,silu(mul(s,0.5)))",
    "rounding": "silu(bf16(mul(s,0.5)))",
    "zero for NaN": "where(isnan(s),0.0,silu(mul(s,0.5)))",
}


@pytest.mark.parametrize("text", WRONG_PROGRAMS.values(), ids=WRONG_PROGRAMS)
def test_wrong_programs_are_invalid(text: str):
    (verdict,) = verdicts(plain, heads(), program(text))
    assert verdict is not None and verdict.invalid, verdict


WRONG_MASKS = {
    "less or equal": "a0:i[b]; a1:f[n,m]; where(le(m,a0),relu(add(s,a1)),0.0)",
    "rows for keys": "a0:i[b]; a1:f[n,m]; where(lt(n,a0),relu(add(s,a1)),0.0)",
    "no bias": "a0:i[b]; a1:f[n,m]; where(lt(m,a0),relu(s),0.0)",
    "a bias without a gradient in one head": (
        "a0:i[b]; a1:f[n,m]; where(lt(m,a0),relu(add(s,where(eq(h,1),detach(a1),a1))),0.0)"
    ),
    "a bias without a gradient": (
        "a0:i[b]; a1:f[n,m]; where(lt(m,a0),relu(add(s,detach(a1))),0.0)"
    ),
}


@pytest.mark.parametrize("text", WRONG_MASKS.values(), ids=WRONG_MASKS)
def test_wrong_masks_are_invalid(text: str):
    (verdict,) = verdicts(masked, masked_inputs(), program(text))
    assert verdict is not None and verdict.invalid, verdict


def on_operand(target: object, *args: object) -> Callable:
    return lambda old, graph: called(graph, fused(graph), target, old, *args)


WRONG_OPERANDS = {
    "query and key swapped rows": (0, on_operand(torch.ops.aten.flip.default, [2])),
    "key of other heads": (1, on_operand(torch.ops.aten.flip.default, [1])),
    "value of another sample": (2, on_operand(torch.ops.aten.flip.default, [0])),
    "query scaled": (0, on_operand(torch.ops.aten.mul.Tensor, 2.0)),
    "query rounded": (0, on_operand(torch.ops.aten._to_copy.default)),
}


@pytest.mark.parametrize(("position", "change"), WRONG_OPERANDS.values(), ids=WRONG_OPERANDS)
def test_wrong_operands_are_invalid(position: int, change: Callable):
    harmless = change.__closure__[1].cell_contents is torch.ops.aten._to_copy.default
    (verdict,) = verdicts(plain, heads(), with_argument(position, change))
    assert (verdict is None) if harmless else (verdict is not None and verdict.invalid), verdict


def test_a_detached_operand_is_invalid():
    change = on_operand(torch.ops.aten.detach.default)
    (verdict,) = verdicts(plain, heads(), with_argument(2, change))
    assert (verdict.invalid and "gradient" in verdict.reason) or "with gradients" in verdict.reason


class Doubled(torch.autograd.Function):
    """A function whose backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class DoubledCopy(Doubled):
    @staticmethod
    def forward(ctx, x):
        return x.clone()


@pytest.mark.parametrize("function", [Doubled, DoubledCopy])
def test_an_autograd_function_is_not_read_through(function):
    """Its result is that of the key, its gradient is not."""

    def attention(q, k, v):
        return F.silu(q @ function.apply(k).mT) @ v

    def key_itself(old, graph):
        return next(n for n in graph.nodes if n.op == "placeholder" and "k" in n.name)

    assert verdicts(attention, heads()) == [None]
    (verdict,) = verdicts(attention, heads(), with_argument(1, key_itself))
    assert verdict is not None, "the gradient is not doubled"


def test_an_operand_that_must_not_learn_is_invalid():
    def frozen(q, k, v):
        return F.silu(q.detach() @ k.mT * 0.5) @ v

    def thaw(graph: torch.fx.Graph) -> None:
        node = fused(graph)
        query = next(n for n in graph.nodes if n.name == "l_q_")
        node.args = (query, *node.args[1:])

    (verdict,) = verdicts(frozen, heads(), thaw)
    assert verdict.invalid and "would get a gradient" in verdict.reason


def written(q, k, v, log):
    log.add_(1.0)
    out = F.silu(q @ k.mT * 0.5) @ v
    log.mul_(2.0)
    return out


def without(*names: str) -> Callable:
    def tamper(graph: torch.fx.Graph) -> None:
        for node in reversed(graph.nodes):
            if node.op.startswith("call") and str(node.target) in names:
                graph.erase_node(node)

    return tamper


def test_a_lost_write_is_invalid():
    inputs = [*heads(), torch.zeros(3)]
    assert verdicts(written, inputs) == [None]
    (verdict,) = verdicts(written, inputs, without("mul_"))
    assert verdict.invalid and verdict.reason == "the write of `mul_` is lost"


def test_an_added_write_is_invalid():
    def tamper(graph: torch.fx.Graph) -> None:
        log = next(n for n in graph.nodes if n.op == "placeholder" and "log" in n.name)
        called(graph, fused(graph), torch.ops.aten.sin_.default, log)

    (verdict,) = verdicts(written, [*heads(), torch.zeros(3)], tamper)
    assert verdict.invalid and verdict.reason == "the write of `sin_` is added"


def test_writes_in_another_order_are_invalid():
    def tamper(graph: torch.fx.Graph) -> None:
        add, mul = (n for n in graph.nodes if n.target in ("add_", "mul_"))
        add.prepend(mul)

    (verdict,) = verdicts(written, [*heads(), torch.zeros(3)], tamper)
    assert verdict.invalid and "order" in verdict.reason


def test_an_operand_read_too_late_is_invalid():
    def late(q, k, v):
        q = q * 1.0
        s = q @ k.mT
        q.add_(1.0)
        return F.silu(s) @ v

    def backend(gm, _):
        before = copy_graph(gm)
        graph = gm.graph
        given = {n.name[2]: n for n in graph.nodes if n.op == "placeholder"}
        copy, write = (next(n for n in graph.nodes if n.name == x) for x in ("q", "add_"))
        end = next(n for n in graph.nodes if n.op == "output")
        args = (copy, given["k"], given["v"], [], [], "silu(s)", "")
        with graph.inserting_before(end):
            out = graph.call_function(torch.ops.gdpa.attention.default, args)
        end.args = ((out,),)
        for node in reversed(list(graph.nodes)):
            if node not in (write, copy) and not node.users and node.op.startswith("call"):
                graph.erase_node(node)
        gm.recompile()
        found.append(judged(before, gm))
        return before.forward

    found: list = []
    torch.compile(late, backend=backend)(*heads(grad=False))
    assert found[0].invalid and "other rows" in found[0].reason


def test_an_operand_that_is_kept_and_written_later_is_invalid():
    def counted(q, k, v, lens):
        mask = torch.arange(M) < lens[:, None, None, None]
        out = torch.where(mask, F.silu(q @ k.mT), 0.0) @ v
        lens.add_(1)
        return out

    def without_copies(graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target is torch.ops.gdpa.kept.default:
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)

    inputs = [*heads(), torch.tensor([2, 5])]
    assert verdicts(counted, inputs) == [None]
    (verdict,) = verdicts(counted, inputs, without_copies)
    assert verdict.invalid and "kept for the backward" in verdict.reason


def test_a_rewritten_body_of_a_checkpoint_is_judged():
    def checkpointed(q, k, v):
        return torch.utils.checkpoint.checkpoint(plain, q, k, v, use_reentrant=False)

    found = []

    def backend(gm, _):
        before = copy_graph(gm)
        assert rewrite_graph(gm, options=ALONE).matches
        found.append(judged(before, gm))
        (body,) = (m for m in gm.children() if isinstance(m, torch.fx.GraphModule))
        program("silu(mul(s,0.25))")(body.graph)
        body.recompile()
        found.append(judged(before, gm))
        return before.forward

    torch.compile(checkpointed, backend=backend)(*heads())
    assert found[0] is None
    assert found[1].invalid and "other weights" in found[1].reason


def test_what_cannot_be_interpreted_is_not_called_invalid():
    """An operation between the products that the evaluator does not know."""

    def odd(q, k, v):
        return torch.cummax(q @ k.mT, -1).values @ v[:, :, :1].expand(-1, -1, M, -1)

    def backend(gm, _):
        before = copy_graph(gm)
        graph = gm.graph
        given = {n.name[2]: n for n in graph.nodes if n.op == "placeholder"}
        value = next(n for n in graph.nodes if n.name == "expand")
        end = next(n for n in graph.nodes if n.op == "output")
        with graph.inserting_before(end):
            args = (given["q"], given["k"], value, [], [], "relu(s)", "")
            out = graph.call_function(torch.ops.gdpa.attention.default, args)
        end.args = ((out,),)
        graph.eliminate_dead_code()
        gm.recompile()
        found.append(judged(before, gm))
        return before.forward

    found: list = []
    torch.compile(odd, backend=backend)(*heads())
    assert found[0] is not None and not found[0].invalid and "not known" in found[0].reason


def test_a_whole_number_from_a_tensor_is_one_as_a_real_number_too():
    def attention(q, k, v, count):
        return F.silu(q @ k.mT * float(count)) @ v

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert verdicts(attention, [*heads(), torch.tensor(3)]) == [None]


@pytest.mark.parametrize("grad", [True, False])
def test_numbers_that_a_rounding_moves_anywhere_say_nothing(grad: bool):
    def attention(q, k, v):
        half = torch.rand(N, M)
        scores = torch.lerp(q @ k.mT, q @ k.mT * 1e20, half)  # which the program has in other words
        return torch.sin(scores).clamp(0.0, 0.3) @ v

    assert verdicts(attention, heads(grad=grad)) == [None]


def test_chained_regions_may_read_their_operands_at_different_places():
    """The second reads the key before its upcast, the first after: the one leads to the other."""

    def attention(q, k, v):
        q32, k, v = q.float(), k.float(), v.float()
        q.type_as(q).div_(3.0)  # may write into the query: the first region keeps its upcasts
        out = F.silu(q32 @ k.mT) @ v
        return F.relu(out @ k.mT) @ v

    q, k, v = (torch.randn(1, 2, 2, dtype=torch.bfloat16) for _ in range(3))
    assert verdicts(attention, [q, k.requires_grad_(), v.requires_grad_()]) == [None]


LONG = 600  # past 256, where bfloat16 has no odd numbers


def compared(q, k, v, ends):
    return torch.where(torch.arange(LONG)[:, None] >= ends, F.silu(q @ k.mT), 0.0) @ v


def cast(q, k, v, ends):
    return torch.where(torch.arange(LONG).bfloat16()[:, None] >= ends, F.silu(q @ k.mT), 0.0) @ v


@pytest.mark.parametrize("function", [compared, cast])
def test_places_in_16_bits_round(function):
    """They meet the ends of the mask in 16 bits, where an odd place is an even one."""
    inputs = [torch.randn(1, 1, LONG, D, requires_grad=True) for _ in range(3)]
    inputs.append(torch.arange(LONG).bfloat16())
    assert verdicts(function, inputs) == [None]
    exact = program("a0:f[m]; where(ge(float(n),a0),silu(s),0.0)")
    (verdict,) = verdicts(function, inputs, exact)
    assert verdict is not None and verdict.invalid


def test_overwritten_weights_have_no_gradient():
    """Not even one of 0 times infinity, which eager gives where a score is infinite."""

    def attention(q, k, v, scale):
        weights = (q @ k.mT * scale).abs()
        weights.unsqueeze(0).fill_(0.5)
        near = (torch.arange(N)[:, None] - torch.arange(M)).abs() <= 1
        return torch.where(near, weights, 0.0) @ v

    scale = torch.ones((), requires_grad=True)
    assert verdicts(attention, [*heads(), scale]) == [None]


def test_lengths_may_be_real_numbers():
    """A mask that is another one where a place is the length, but for the first place."""

    def attention(q, k, v, lens):
        return torch.where(torch.arange(M) < lens[:, None, None, None], q @ k.mT, 0.0) @ v

    inputs = [*heads(), torch.tensor([2.0, 5.0])]
    assert verdicts(attention, inputs) == [None]
    tampered = program("a0:f[b]; where(or(lt(float(m),a0),and(ge(m,1),eq(float(m),a0))),s,0.0)")
    (verdict,) = verdicts(attention, inputs, tampered)
    assert verdict is not None and verdict.invalid


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"scale_grad_by_freq": True}])
def test_the_gradient_of_an_embedding(options):
    """Padding has none, and that of a frequent place is scaled: another index changes both."""

    def attention(q, k, v, index, table):
        bias = F.embedding(index, table, **options).permute(2, 0, 1)
        return F.silu(q @ k.mT + bias) @ v

    def tamper(graph: torch.fx.Graph) -> None:
        """Look up in two copies of the table, even places in the second one."""
        node = next(n for n in graph.nodes if n.target is F.embedding)
        index, table = node.args[:2]
        twice = called(graph, node, torch.cat, [table, table])
        odd = called(graph, node, torch.ops.aten.bitwise_and.Scalar, index, 1)
        moved = called(graph, node, torch.sub, index, called(graph, node, torch.mul, odd, 4))
        node.args = (called(graph, node, torch.add, moved, 4), twice, *node.args[2:])

    table = torch.randn(4, H, requires_grad=True)
    inputs = [*heads(), torch.randint(0, 4, (N, M)), table]
    assert verdicts(attention, inputs) == [None]
    (verdict,) = verdicts(attention, inputs, tamper)
    assert verdict.invalid and "another gradient" in verdict.reason


namesakes = torch.library.Library("gdpa_namesakes", "DEF")
namesakes.define("zeros_like(Tensor x) -> Tensor")
namesakes.impl("zeros_like", lambda x: x * 2 + 1, "CompositeExplicitAutograd")
namesakes.impl("zeros_like", torch.empty_like, "Meta")


def test_a_namesake_is_another_operation():
    def attention(q, k, v):
        s = q @ k.mT
        return (F.silu(s) + torch.zeros_like(s)) @ v

    def backend(gm, _):
        before = copy_graph(gm)
        assert rewrite_graph(gm, options=ALONE).matches
        zeros = next(n for n in before.graph.nodes if n.target is torch.zeros_like)
        zeros.target = torch.ops.gdpa_namesakes.zeros_like.default
        before.recompile()
        found.append(judged(before, gm))
        return before.forward

    found: list = []
    torch.compile(attention, backend=backend)(*heads(grad=False))
    assert found[0] is not None and "not known" in found[0].reason


def test_random_numbers_of_another_size_are_invalid():
    def attention(q, k, v):
        s = q @ k.mT
        noise = torch.rand_like(q)
        return F.silu(s) @ v + noise, torch.rand(3)

    def tamper(graph: torch.fx.Graph) -> None:
        node = next(n for n in graph.nodes if n.target is torch.rand_like)
        key = next(n for n in graph.nodes if n.name == "l_k_")
        node.args = (key,)

    assert verdicts(attention, heads()) == [None]
    (verdict,) = verdicts(attention, heads(), tamper)
    assert verdict.invalid and "random numbers" in verdict.reason


@pytest.mark.parametrize("asked", [False, True])
def test_a_cast_of_autocast_is_not_asked_for(asked: bool):
    """Weights past the range of float16 are infinite there, where the model says so."""

    def attention(q, k, v):
        s = q @ k.mT
        with torch.autocast("cpu", torch.float16):
            return (F.relu(s).half() if asked else F.relu(s)) @ v

    assert verdicts(attention, heads()) == [None]
    (verdict,) = verdicts(attention, heads(), program("relu(s)"))
    assert (verdict is not None) == asked


def test_scores_that_are_overwritten():
    """The weights are made from no product: the program's must be the same for all scores."""

    def attention(q, k, v):
        scores = q @ k.mT
        scores.zero_()
        return F.silu(scores + 1.0) @ v

    assert verdicts(attention, heads()) == [None]
    (verdict,) = verdicts(attention, heads(), program("silu(add(s,1.0))"))
    assert verdict.invalid and "other weights" in verdict.reason


def test_sums_that_torch_may_fuse_say_nothing_where_a_product_overflows():
    def attention(q, k, v, a, b):
        return torch.addcmul(q @ k.mT, a, b).clamp(min=0.0) @ v

    inputs = [x.double() for x in heads(grad=False)]
    inputs += [torch.randn(N, 1, dtype=torch.float64), torch.randn(M, dtype=torch.float64)]
    assert verdicts(attention, inputs) == [None]
