"""The judge on wrong graphs: lost writes, lost gradients, other operations."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor.graphs import copy_graph
from gdpa_inductor.judge import judged
from gdpa_inductor.patterns import rewrite_graph
from tests.judge.rewritten import (
    ALONE,
    B,
    M,
    N,
    called,
    fused,
    heads,
    on_operand,
    plain,
    program,
    verdicts,
    with_argument,
)


def test_a_detached_operand_is_invalid():
    change = on_operand(torch.ops.aten.detach.default)
    (verdict,) = verdicts(plain, heads(), with_argument(2, change))
    assert (verdict.invalid and "gradient" in verdict.reason) or "with gradients" in verdict.reason


def halved(old, graph):
    """The same numbers, of which half are detached."""
    node = fused(graph)
    part = called(graph, node, torch.ops.aten.mul.Tensor, old, 0.5)
    rest = called(graph, node, torch.ops.aten.detach.default, part)
    return called(graph, node, torch.ops.aten.add.Tensor, part, rest)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_operand_with_a_part_of_its_gradient_is_invalid(position: int):
    (verdict,) = verdicts(plain, heads(), with_argument(position, halved))
    assert verdict.invalid and verdict.reason == "another gradient of a factor"


def test_the_factor_that_learns_is_no_detached_twin():
    """Their numbers are the same, so that of query and key each may seem to be the other."""

    def attention(x, v):
        return F.silu(x @ x.detach().mT) @ v

    def swapped(graph: torch.fx.Graph) -> None:
        node = fused(graph)
        query, key, *rest = node.args
        node.args = (key, query, *rest)

    inputs = [torch.randn(2, 3, M, 4, requires_grad=True) for _ in range(2)]
    assert verdicts(attention, inputs) == [None]
    (verdict,) = verdicts(attention, inputs, swapped)
    assert verdict.invalid and verdict.reason == "another gradient of a factor"


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


def with_a_leaf(q, k, v):
    s = q @ k.mT
    bias = s.new_zeros(M, requires_grad=True)
    return F.silu(s + bias) @ v


def returned_leaf(q, k, v):
    bias = q.new_zeros(M, requires_grad=True)
    return F.silu(q @ k.mT + bias) @ v, bias


def test_a_leaf_of_the_graph_needs_a_gradient_only_where_it_is_seen():
    """Both programs have a zero for it; who is given the leaf may ask for its gradient."""

    def with_a_zero(graph: torch.fx.Graph) -> None:
        with_argument(3, [])(graph)
        program("silu(add(s,0.0))")(graph)

    assert verdicts(with_a_leaf, heads(), with_a_zero) == [None]
    (verdict,) = verdicts(returned_leaf, heads(), with_a_zero)
    assert verdict.invalid and "no gradient" in verdict.reason


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


def test_a_lost_write_of_one_element_is_noticed():
    """No sample may lie there; then the judge cannot tell, and says so."""

    def attention(q, k, v):
        query = q.clone()
        query.view(-1)[0] = 9.0
        return F.silu(query @ k.mT) @ v

    def before_the_write(old, graph):
        return next(n for n in graph.nodes if n.name == "l_q_")

    inputs = [torch.randn(2, 4, n, 32) for n in (9, 8, 8)]
    assert verdicts(attention, inputs) == [None]
    (verdict,) = verdicts(attention, inputs, with_argument(0, before_the_write))
    assert verdict is not None


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
        inputs = {n.name[2]: n for n in graph.nodes if n.op == "placeholder"}
        copy, write = (next(n for n in graph.nodes if n.name == x) for x in ("q", "add_"))
        end = next(n for n in graph.nodes if n.op == "output")
        args = (copy, inputs["k"], inputs["v"], [], [], "silu(s)", "")
        with graph.inserting_before(end):
            out = graph.call_function(torch.ops.gdpa.attention.default, args)
        end.args = ((out,),)
        for node in reversed(list(graph.nodes)):
            if node not in (write, copy) and not node.users and node.op.startswith("call"):
                graph.erase_node(node)
        gm.recompile()
        results.append(judged(before, gm))
        return before.forward

    results: list = []
    torch.compile(late, backend=backend)(*heads(grad=False))
    assert results[0].invalid and "other rows" in results[0].reason


def test_a_saved_operand_that_is_written_later_is_invalid():
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


def test_a_bias_of_a_size_that_elements_decide_is_judged():
    def attention(q, k, v, table, mask):
        return F.silu(q @ k.mT + table[mask].view(M, M)) @ v

    _, k, v = heads()
    table, mask = torch.randn(40), torch.arange(40) < M * M
    turned = with_argument(3, lambda old, graph: [called(graph, fused(graph), torch.t, *old)])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert verdicts(attention, [k, k, v, table, mask]) == [None]
        (verdict,) = verdicts(attention, [k, k, v, table, mask], turned)
    assert verdict.invalid and "other weights" in verdict.reason


def test_a_mask_of_as_many_samples_as_elements_decide_is_judged():
    """It is multiplied with the scores: torch notes that there are as many."""

    def attention(q, k, v, table, mask):
        return (F.silu(q @ k.mT) * table[mask].view(-1, 1, M, M)) @ v

    _, k, v = heads()
    table, mask = torch.randn(60), torch.arange(60) < B * M * M
    turned = with_argument(5, lambda old, _: old.replace("q_idx,kv_idx]", "kv_idx,q_idx]"))
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert verdicts(attention, [k, k, v, table, mask]) == [None]
        (verdict,) = verdicts(attention, [k, k, v, table, mask], turned)
    assert verdict.invalid and "other weights" in verdict.reason


def test_keys_of_a_number_that_elements_decide_are_refused():
    def attention(q, k, v, mask):
        return F.silu(q @ k[:, :, mask].mT) @ v[:, :, mask]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        (verdict,) = verdicts(attention, [*heads(), torch.arange(M) < 2])
    assert not verdict.invalid and "size of a tensor depends on the elements" in verdict.reason


def test_what_cannot_be_interpreted_is_not_called_invalid():
    """An operation between the products that the evaluator does not know."""

    def odd(q, k, v):
        return torch.cummax(q @ k.mT, -1).values @ v[:, :, :1].expand(-1, -1, M, -1)

    def backend(gm, _):
        before = copy_graph(gm)
        graph = gm.graph
        inputs = {n.name[2]: n for n in graph.nodes if n.op == "placeholder"}
        value = next(n for n in graph.nodes if n.name == "expand")
        end = next(n for n in graph.nodes if n.op == "output")
        with graph.inserting_before(end):
            args = (inputs["q"], inputs["k"], value, [], [], "relu(s)", "")
            out = graph.call_function(torch.ops.gdpa.attention.default, args)
        end.args = ((out,),)
        graph.eliminate_dead_code()
        gm.recompile()
        results.append(judged(before, gm))
        return before.forward

    results: list = []
    torch.compile(odd, backend=backend)(*heads())
    assert results[0] is not None and not results[0].invalid and "not known" in results[0].reason


def test_chained_regions_may_read_their_operands_at_different_places():
    """The second reads the key before its upcast, the first after: the one leads to the other."""

    def attention(q, k, v):
        q32, k, v = q.float(), k.float(), v.float()
        q.type_as(q).div_(3.0)  # may write into the query: the first region keeps its upcasts
        out = F.silu(q32 @ k.mT) @ v
        return F.relu(out @ k.mT) @ v

    q, k, v = (torch.randn(1, 2, 2, dtype=torch.bfloat16) for _ in range(3))
    assert verdicts(attention, [q, k.requires_grad_(), v.requires_grad_()]) == [None]


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
        results.append(judged(before, gm))
        return before.forward

    results: list = []
    torch.compile(attention, backend=backend)(*heads(grad=False))
    assert results[0] is not None and "not known" in results[0].reason


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


def test_views_of_one_tensor_share_their_storage():
    """What eager keeps of one view is not kept anew where the op keeps another."""

    def attention(q, k, v):
        return F.silu(q.detach() @ k.mT) @ v

    base = torch.randn(2, 2, 3, 5, 8, requires_grad=True)
    q, k, v = base.unbind(2)
    assert verdicts(attention, [q, k, v]) == [None]


def test_a_foreach_call_that_writes_into_a_view_is_invalid():
    def scaled(q, k, v):
        out = F.silu(q @ k.mT) @ v
        torch._foreach_mul_([out], 0.5)
        return out

    def without_copy(graph: torch.fx.Graph) -> None:
        (copy,) = graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
        copy.replace_all_uses_with(copy.args[0])
        graph.erase_node(copy)

    inputs = [torch.randn(2, 5, 8, requires_grad=True) for _ in range(3)]  # without heads
    assert verdicts(scaled, inputs) == [None]
    (verdict,) = verdicts(scaled, inputs, without_copy)
    assert verdict.invalid and "is a view now" in verdict.reason


def scaled_by_a_sum(q, k, v, scale):
    return torch.einsum("bhij,ik->bhij", F.silu(q @ k.mT), scale) @ v


def summed_again(*args):
    """Sums another dim than the einsum does, or not all of it."""

    def tamper(graph: torch.fx.Graph) -> None:
        (node,) = (n for n in graph.nodes if n.target is torch.ops.aten.sum.dim_IntList)
        node.args = (node.args[0], *args)
        if args[0] == [0]:
            with graph.inserting_after(node):
                turned = graph.call_function(torch.ops.aten.t.default, (node,))
            node.replace_all_uses_with(turned, lambda user: user is not turned)

    return tamper


def half_of_it(graph: torch.fx.Graph) -> None:
    (node,) = (n for n in graph.nodes if n.target is torch.ops.aten.sum.dim_IntList)
    part = called(graph, node, torch.ops.aten.slice.Tensor, node.args[0], 1, 0, 3)
    node.args = (part, *node.args[1:])


def test_another_sum_of_an_operand_is_invalid():
    inputs = [*heads(), torch.randn(N, N, requires_grad=True)]
    assert verdicts(scaled_by_a_sum, inputs) == [None]
    for tamper in (summed_again([0], True), half_of_it):
        (verdict,) = verdicts(scaled_by_a_sum, inputs, tamper)
        assert verdict.invalid, tamper


def two_values(q, k, v):
    w = F.silu(q @ k.mT)
    return w @ v, torch.tanh(w) @ v.sin()


def test_scores_that_two_results_share_are_judged_for_each():
    """The first claim has decided them; the second one is wrong by itself."""
    assert verdicts(two_values, heads()) == [None]

    def other_program(graph: torch.fx.Graph) -> None:
        node = [n for n in graph.nodes if n.target is torch.ops.gdpa.attention.default][1]
        node.args = tuple("silu(s)" if isinstance(x, str) and "tanh" in x else x for x in node.args)

    def other_query(graph: torch.fx.Graph) -> None:
        node = [n for n in graph.nodes if n.target is torch.ops.gdpa.attention.default][1]
        node.args = (called(graph, node, torch.ops.aten.mul.Tensor, node.args[0], 2.0),
                     *node.args[1:])  # fmt: skip

    for tamper in (other_program, other_query):
        (verdict,) = verdicts(two_values, heads(), tamper)
        assert verdict.invalid, tamper


def side_by_side(q, k, v):
    w, u = F.silu(q @ k.mT), v.sin()
    return w @ v, w @ u


def test_values_side_by_side_that_are_split_wrongly_are_invalid():
    inputs = heads(grad=False)
    assert verdicts(side_by_side, inputs) == [None]

    def exchanged(graph: torch.fx.Graph) -> None:
        (node,) = (n for n in graph.nodes if n.target is torch.ops.aten.cat.default)
        node.args = (node.args[0][::-1], node.args[1])

    (verdict,) = verdicts(side_by_side, inputs, exchanged)
    assert verdict.invalid
