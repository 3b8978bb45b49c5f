"""The judge on wrong graphs: lost writes, lost gradients, other operations."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.judge.rewritten import (
    ATTENTION,
    B,
    M,
    N,
    by_hand,
    by_matcher,
    call_of,
    called,
    fused,
    heads,
    on_operand,
    operand,
    plain,
    program,
    stopped,
    verdicts,
    with_argument,
)

aten = torch.ops.aten
SIZES_OF_ELEMENTS = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)


def test_a_detached_operand_is_invalid():
    change = on_operand(aten.detach.default)
    (verdict,) = verdicts(plain, heads(), with_argument(2, change))
    assert (verdict.invalid and "gradient" in verdict.reason) or "with gradients" in verdict.reason


def halved(old, graph):
    """The same numbers, of which half are detached."""
    node = fused(graph)
    part = called(graph, node, aten.mul.Tensor, old, 0.5)
    rest = called(graph, node, aten.detach.default, part)
    return called(graph, node, aten.add.Tensor, part, rest)


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
    assert stopped(attention, inputs, swapped).reason == "another gradient of a factor"


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

    assert verdicts(attention, heads()) == [None]
    key_itself = with_argument(1, lambda old, graph: operand(graph, "k"))
    (verdict,) = verdicts(attention, heads(), key_itself)
    assert verdict is not None, "the gradient is not doubled"


def test_an_operand_that_must_not_learn_is_invalid():
    def frozen(q, k, v):
        return F.silu(q.detach() @ k.mT * 0.5) @ v

    thaw = with_argument(0, lambda old, graph: operand(graph, "q"))
    stopped(frozen, heads(), thaw, reason="would get a gradient")


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


def without_mul(graph: torch.fx.Graph) -> None:
    graph.erase_node(call_of(graph, "mul_"))


def with_sin(graph: torch.fx.Graph) -> None:
    called(graph, fused(graph), aten.sin_.default, operand(graph, "log"))


def in_another_order(graph: torch.fx.Graph) -> None:
    call_of(graph, "add_").prepend(call_of(graph, "mul_"))


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        pytest.param(without_mul, "the write of `mul_` is lost", id="lost"),
        pytest.param(with_sin, "the write of `sin_` is added", id="added"),
        pytest.param(
            in_another_order, "the order of the remaining nodes has changed", id="in another order"
        ),
    ],
)
def test_a_changed_write_is_invalid(tamper: Callable, reason: str):
    assert stopped(written, [*heads(), torch.zeros(3)], tamper).reason == reason


def test_a_lost_write_of_one_element_is_noticed():
    """No sample may lie there; then the judge cannot tell, and says so."""

    def attention(q, k, v):
        query = q.clone()
        query.view(-1)[0] = 9.0
        return F.silu(query @ k.mT) @ v

    inputs = [torch.randn(2, 4, n, 32) for n in (9, 8, 8)]
    assert verdicts(attention, inputs) == [None]
    before_the_write = with_argument(0, lambda old, graph: operand(graph, "q"))
    (verdict,) = verdicts(attention, inputs, before_the_write)
    assert verdict is not None


def test_an_operand_read_too_late_is_invalid():
    def late(q, k, v):
        q = q * 1.0
        s = q @ k.mT
        q.add_(1.0)
        return F.silu(s) @ v

    rewrite = by_hand("silu(s)", "q", "l_k_", "l_v_", "add_", "q")
    (verdict,) = verdicts(late, heads(grad=False), rewrite=rewrite)
    assert verdict.invalid and "other rows" in verdict.reason


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
    stopped(counted, inputs, without_copies, reason="kept for the backward")


def by_row(q, k, v, table, mask):
    return F.silu(q @ k.mT + table[mask].view(M, M)) @ v


def by_sample(q, k, v, table, mask):
    return (F.silu(q @ k.mT) * table[mask].view(-1, 1, M, M)) @ v


@pytest.mark.parametrize(
    ("function", "count", "tamper"),
    [
        (by_row, M * M, with_argument(3, lambda old, g: [called(g, fused(g), torch.t, *old)])),
        (
            by_sample,
            B * M * M,
            with_argument(5, lambda old, _: old.replace("q_idx,kv_idx]", "kv_idx,q_idx]")),
        ),
    ],
)
def test_an_operand_of_a_size_that_elements_decide_is_judged(function, count, tamper):
    """Where it is multiplied with the scores, torch notes that there are as many samples."""
    _, k, v = heads()
    inputs = [k, k, v, torch.randn(60), torch.arange(60) < count]
    with SIZES_OF_ELEMENTS:
        stopped(function, inputs, tamper, reason="other weights")


def test_keys_of_a_number_that_elements_decide_are_refused():
    def attention(q, k, v, mask):
        return F.silu(q @ k[:, :, mask].mT) @ v[:, :, mask]

    with SIZES_OF_ELEMENTS:
        (verdict,) = verdicts(attention, [*heads(), torch.arange(M) < 2])
    assert not verdict.invalid and "size of a tensor depends on the elements" in verdict.reason


def test_what_cannot_be_interpreted_is_not_called_invalid():
    """An operation between the products that the evaluator does not know."""

    def odd(q, k, v):
        return torch.cummax(q @ k.mT, -1).values @ v[:, :, :1].expand(-1, -1, M, -1)

    rewrite = by_hand("relu(s)", "l_q_", "l_k_", "expand")
    (verdict,) = verdicts(odd, heads(), rewrite=rewrite)
    assert verdict is not None and not verdict.invalid and "not known" in verdict.reason


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
    """The judge reads the namesake, the matcher has read torch's function."""

    def attention(q, k, v):
        s = q @ k.mT
        return (F.silu(s) + torch.ops.gdpa_namesakes.zeros_like(s)) @ v

    def misread(gm: torch.fx.GraphModule):
        (zeros,) = (n for n in gm.graph.nodes if n.name == "zeros_like")
        zeros.target = torch.zeros_like
        return by_matcher(gm)

    (verdict,) = verdicts(attention, heads(grad=False), rewrite=misread)
    assert verdict is not None and "not known" in verdict.reason


def test_random_numbers_of_another_size_are_invalid():
    def attention(q, k, v):
        s = q @ k.mT
        noise = torch.rand_like(q)
        return F.silu(s) @ v + noise, torch.rand(3)

    def tamper(graph: torch.fx.Graph) -> None:
        call_of(graph, torch.rand_like).args = (operand(graph, "k"),)

    stopped(attention, heads(), tamper, reason="random numbers")


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
        copy = call_of(graph, aten.clone.default)
        copy.replace_all_uses_with(copy.args[0])
        graph.erase_node(copy)

    inputs = [torch.randn(2, 5, 8, requires_grad=True) for _ in range(3)]  # without heads
    stopped(scaled, inputs, without_copy, reason="is a view now")


def scaled_by_a_sum(q, k, v, scale):
    return torch.einsum("bhij,ik->bhij", F.silu(q @ k.mT), scale) @ v


def of_another_dim(graph: torch.fx.Graph) -> None:
    node = call_of(graph, aten.sum.dim_IntList)
    node.args = (node.args[0], [0], True)
    with graph.inserting_after(node):
        turned = graph.call_function(aten.t.default, (node,))
    node.replace_all_uses_with(turned, lambda user: user is not turned)


def half_of_it(graph: torch.fx.Graph) -> None:
    node = call_of(graph, aten.sum.dim_IntList)
    part = called(graph, node, aten.slice.Tensor, node.args[0], 1, 0, 3)
    node.args = (part, *node.args[1:])


def test_another_sum_of_an_operand_is_invalid():
    inputs = [*heads(), torch.randn(N, N, requires_grad=True)]
    stopped(scaled_by_a_sum, inputs, of_another_dim, half_of_it)


def two_values(q, k, v):
    w = F.silu(q @ k.mT)
    return w @ v, torch.tanh(w) @ v.sin()


def other_program(graph: torch.fx.Graph) -> None:
    _, node = graph.find_nodes(op="call_function", target=ATTENTION)
    node.args = tuple("silu(s)" if isinstance(x, str) and "tanh" in x else x for x in node.args)


def other_query(graph: torch.fx.Graph) -> None:
    _, node = graph.find_nodes(op="call_function", target=ATTENTION)
    query, *rest = node.args
    node.args = (called(graph, node, aten.mul.Tensor, query, 2.0), *rest)


def test_scores_that_two_results_share_are_judged_for_each():
    """The first claim has decided them; the second one is wrong by itself."""
    stopped(two_values, heads(), other_program, other_query)


def side_by_side(q, k, v):
    w, u = F.silu(q @ k.mT), v.sin()
    return w @ v, w @ u


def test_values_side_by_side_that_are_split_wrongly_are_invalid():
    def exchanged(graph: torch.fx.Graph) -> None:
        node = call_of(graph, aten.cat.default)
        node.args = (node.args[0][::-1], node.args[1])

    stopped(side_by_side, heads(grad=False), exchanged)
