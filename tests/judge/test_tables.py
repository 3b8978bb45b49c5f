"""The judge on programs that look up tables, for look-ups of ATen: right ones and wrong ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node

from tests.judge.rewritten import (
    ATTENTION,
    B,
    D,
    H,
    M,
    N,
    called,
    fused,
    heads,
    operand,
    verdicts,
)

aten = torch.ops.aten
PLACES, WIDE = N + M - 1, 300  # of a table by position; of one whose index needs more than 8 bits
SILU = "silu(add(s,lookup(a0,{})))"
DISTANCE = f"add(sub(q_idx,kv_idx),{M - 1})"


def distance() -> torch.Tensor:
    return torch.arange(N)[:, None] - torch.arange(M) + M - 1


def by_head_and_distance(q, k, v, table):
    return F.silu(q @ k.mT + table[:, distance()]) @ v


def by_distance(q, k, v, table):
    return F.silu(q @ k.mT + table[distance()].permute(2, 0, 1)) @ v


def embedded(q, k, v, table):
    return F.silu(q @ k.mT + F.embedding(distance(), table).permute(2, 0, 1)) @ v


def selected(q, k, v, table):
    rows = table.index_select(0, distance().flatten())
    return F.silu(q @ k.mT + rows.view(N, M, H).permute(2, 0, 1)) @ v


def clamped(q, k, v, table):
    place = (torch.arange(N)[:, None] - torch.arange(M)).clamp(-2, 3) + 2
    return F.silu(q @ k.mT + table[:, place]) @ v


def of_every_query(q, k, v, table):
    """q·r of Transformer-XL: a table for each query."""
    place = distance().expand(B, H, N, M)
    return F.silu(q @ k.mT + table.gather(-1, place)) @ v


def by_time(q, k, v, table, index):
    return F.silu(q @ k.mT + table[index].unsqueeze(1)) @ v


def by_head_and_time(q, k, v, table, index):
    return F.silu(q @ k.mT + table[:, index].transpose(0, 1)) @ v


def taken(q, k, v, table, index):
    return F.silu(q @ k.mT + table.take(index)[:, None]) @ v


def by_both(q, k, v, table, index, times):
    bias = table[:, distance()] + times[index % 7].unsqueeze(1)
    return torch.where(torch.arange(N)[:, None] >= torch.arange(M), F.silu(q @ k.mT + bias), 0) @ v


def by_logarithm(q, k, v, table):
    """Buckets, as of T5: what rounds decides on the place."""
    apart = (torch.arange(N)[:, None] - torch.arange(M)).clamp(min=0)
    return F.silu(q @ k.mT + table[:, (torch.log(apart.float() + 1) * 2.5).long()]) @ v


def in_low_precision(q, k, v, table):
    return F.silu(q @ k.mT + table.to(q.dtype)[:, distance()]) @ v


def wrapped(q, k, v, table):
    """Places that count from the end."""
    return F.silu(q @ k.mT + table[:, torch.arange(N)[:, None] - torch.arange(M)]) @ v


def rearranged(q, k, v, table):
    """As the research code of HSTU makes its bias, without an index."""
    lines = F.pad(table, [0, 1]).repeat(1, N)[:, : N * PLACES].view(H, N, PLACES)
    return F.silu(q @ k.mT + lines[:, :, N - 1 :]) @ v


def padded(q, k, v, table):
    """Keys after the query have the number that fills."""
    flat = F.pad(table, [1, N + M], value=0.25).roll(-1, 1).repeat(1, N)
    lines = flat[:, : N * (2 * (N + M) - 1)].view(H, N, -1)
    return F.silu(q @ k.mT + lines[:, :, :M]) @ v


Operand = Callable[[Graph, Node], Node]


def named(name: str) -> Operand:
    return lambda graph, end: next(n for n in graph.nodes if n.name == f"l_{name}_")


def on(name: str, target: Callable, *args: object) -> Operand:
    """An operand after a call."""
    return lambda graph, end: called(graph, end, target, named(name)(graph, end), *args)


KEPT = torch.ops.gdpa.kept.default  # eager keeps the places, and not the table
TABLE, TIMES, INDEX = on("table", KEPT), on("times", KEPT), on("index", KEPT)
NARROW = on("index", aten.to.dtype, torch.uint8)
IN_16_BITS = on("index", aten.to.dtype, torch.int16)
WRAPPED = on("index", aten.remainder.Scalar, WIDE)


@dataclass(frozen=True)
class Rewrite:
    """The fused call that takes the place of all that a function does."""

    function: Callable
    program: str
    aux: Sequence[Operand] = (TABLE,)

    def __call__(self, gm: GraphModule) -> None:
        graph = gm.graph
        end = next(n for n in graph.nodes if n.op == "output")
        matrices = [named(name)(graph, end) for name in "qkv"]
        aux = [made(graph, end) for made in self.aux]
        end.args = ((called(graph, end, ATTENTION, *matrices, aux, [], self.program, ""),),)
        for node in reversed(graph.nodes):
            if not node.users and node.op.startswith("call"):
                graph.erase_node(node)

    def inputs(self, grad: bool) -> list[torch.Tensor]:
        shapes = {
            by_head_and_distance: [H, PLACES], in_low_precision: [H, PLACES], wrapped: [H, PLACES],
            rearranged: [H, PLACES], padded: [H, PLACES], by_both: [H, PLACES],
            by_logarithm: [H, PLACES], clamped: [H, 6],
            of_every_query: [B, H, N, PLACES], by_time: [WIDE], taken: [WIDE],
            by_head_and_time: [H, WIDE],
        }  # fmt: skip
        table = torch.randn(shapes.get(self.function, [PLACES, H]), requires_grad=grad)
        given = [*heads(grad=grad), table]
        if self.function is in_low_precision:
            given[:3] = [x.detach().bfloat16().requires_grad_(grad) for x in given[:3]]
        if self.function in (by_time, by_head_and_time, taken, by_both):
            given.append(torch.randint(0, WIDE, (B, N, M)))
        if self.function is by_both:
            given.append(torch.randn(7, requires_grad=grad))
        return given

    def verdict(self, grad: bool):
        (verdict,) = verdicts(self.function, self.inputs(grad), rewrite=self)
        return verdict


def heads_last(place: str) -> str:
    return "a0:f[t,h]; " + SILU.format(place)


def heads_first(place: str) -> str:
    return "a0:f[h,t]; " + SILU.format(place)


def timed(access: str = "t", index: str = "b,q_idx,kv_idx", place: str = "a1") -> str:
    return f"a0:f[{access}]; a1:i[{index}]; " + SILU.format(place)


BOTH = (
    "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[t]; where({},"
    "silu(add(add(s,lookup(a0,{})),lookup(a2,{}))),0.0)"
)
BUCKET = "int(mul(log(add(float(maximum(sub(q_idx,kv_idx),{})),1.0)),{}))"
NO_NEGATIVE = "where(lt(a1,0),add(a1,300),a1)"
CAUSAL = "ge(q_idx,kv_idx)"
APART = "sub(kv_idx,q_idx)"
FILLED = f"a0:f[h,t]; silu(add(s,where(ge({APART},0),lookup(a0,maximum({APART},0)),{{}})))"
RIGHT = {
    "[h,t]": Rewrite(by_head_and_distance, heads_first(DISTANCE)),
    "[h,t], a term in another order": Rewrite(
        by_head_and_distance, heads_first(f"sub(add(q_idx,{M - 1}),kv_idx)")
    ),
    "[t,h]": Rewrite(by_distance, heads_last(DISTANCE)),
    "[t,h], transposed before": Rewrite(
        by_distance, heads_first(DISTANCE),
        [lambda g, e: called(g, e, aten.t.default, TABLE(g, e))],
    ),
    "embedding": Rewrite(embedded, heads_last(DISTANCE)),
    "index_select": Rewrite(selected, heads_last(DISTANCE)),
    "gather": Rewrite(of_every_query, f"a0:f[b,h,q_idx,t]; {SILU.format(DISTANCE)}"),
    "clamp": Rewrite(
        clamped, heads_first("add(minimum(maximum(sub(q_idx,kv_idx),-2),3),2)")
    ),
    "by an operand": Rewrite(by_time, timed(place=NO_NEGATIVE), [TABLE, named("index")]),
    "by an operand, [h,t]": Rewrite(
        by_head_and_time, timed("h,t", place=NO_NEGATIVE), [TABLE, named("index")]
    ),
    "take": Rewrite(taken, timed(place=NO_NEGATIVE), [TABLE, named("index")]),
    "by an operand, wrapped and in 16 bits": Rewrite(
        by_time, timed(),
        [TABLE, lambda g, e: called(g, e, aten.to.dtype, WRAPPED(g, e), torch.int16)],
    ),
    "both": Rewrite(
        by_both, BOTH.format(CAUSAL, DISTANCE, "mod(a1,7)"), [TABLE, INDEX, TIMES]
    ),
    "by a logarithm": Rewrite(by_logarithm, heads_first(BUCKET.format("0", "2.5"))),
    "places from the end": Rewrite(
        wrapped, heads_first(f"where(lt(q_idx,kv_idx),add(sub(q_idx,kv_idx),{PLACES}),"
                             "sub(q_idx,kv_idx))")
    ),
    "padded, repeated and viewed": Rewrite(rearranged, heads_first(f"add({APART},{N - 1})")),
    "with a fill": Rewrite(padded, FILLED.format(0.25)),
    "rounded": Rewrite(in_low_precision, f"a0:f[h,t]; silu(add(s,bf16(lookup(a0,{DISTANCE}))))"),
}  # fmt: skip
WRONG = {
    "off by one": Rewrite(by_head_and_distance, heads_first(f"add(sub(q_idx,kv_idx),{M})")),
    "off by one, [t,h]": Rewrite(by_distance, heads_last(f"add(sub(q_idx,kv_idx),{M - 2})")),
    "transposed": Rewrite(by_head_and_distance, heads_first(f"add(sub(kv_idx,q_idx),{N - 1})")),
    "by the sum": Rewrite(by_distance, heads_last("add(q_idx,kv_idx)")),
    "off by one at the last place": Rewrite(
        by_head_and_distance,
        heads_first(f"where(and(eq(q_idx,{N - 1}),eq(kv_idx,0)),0,{DISTANCE})"),
    ),
    "clamped below the last place": Rewrite(
        by_head_and_distance, heads_first(f"minimum({DISTANCE},{PLACES - 2})")
    ),
    "clamped above the first place": Rewrite(
        by_head_and_distance, heads_first(f"maximum({DISTANCE},1)")
    ),
    "an open bound": Rewrite(
        clamped, heads_first("add(minimum(maximum(sub(q_idx,kv_idx),-2),2),2)")
    ),
    "the table reversed": Rewrite(
        by_head_and_distance, heads_first(DISTANCE), [on("table", aten.flip.default, [1])]
    ),
    "another head": Rewrite(
        by_head_and_distance, heads_first(DISTANCE), [on("table", aten.flip.default, [0])]
    ),
    "one head for all": Rewrite(
        by_head_and_distance, f"a0:f[t]; {SILU.format(DISTANCE)}",
        [on("table", aten.select.int, 0, 0)],
    ),
    "another table of the queries": Rewrite(
        of_every_query, f"a0:f[b,h,q_idx,t]; {SILU.format(DISTANCE)}",
        [on("table", aten.flip.default, [2])],
    ),
    "no bias": Rewrite(by_head_and_distance, "silu(s)", []),
    "no gradient": Rewrite(
        by_head_and_distance, f"a0:f[h,t]; silu(add(s,detach(lookup(a0,{DISTANCE}))))"
    ),
    "a gradient of half the scores": Rewrite(
        by_head_and_distance,
        f"a0:f[h,t]; t0=lookup(a0,{DISTANCE}); "
        "silu(add(s,where(eq(mod(kv_idx,2),0),t0,detach(t0))))",
    ),
    "the table cut": Rewrite(
        by_head_and_distance, heads_first(DISTANCE), [on("table", aten.detach.default)]
    ),
    "another activation": Rewrite(
        by_head_and_distance, f"a0:f[h,t]; relu(add(s,lookup(a0,{DISTANCE})))"
    ),
    "places from the end are outside": Rewrite(wrapped, heads_first("sub(q_idx,kv_idx)")),
    "in 8 bits": Rewrite(by_time, timed(), [TABLE, NARROW]),
    "in 8 bits, wrapped before": Rewrite(
        by_time, timed(),
        [TABLE, lambda g, e: called(g, e, aten.to.dtype, WRAPPED(g, e), torch.uint8)],
    ),
    "another bucket": Rewrite(by_logarithm, heads_first(BUCKET.format("1", "2.5"))),
    "a wider bucket": Rewrite(by_logarithm, heads_first(BUCKET.format("0", "2.4"))),
    "clamped below the last place of an operand": Rewrite(
        by_time, timed(place=f"minimum({NO_NEGATIVE},298)"), [TABLE, named("index")]
    ),
    "clamped above the first place of an operand": Rewrite(
        by_time, timed(place=f"maximum({NO_NEGATIVE},1)"), [TABLE, named("index")]
    ),
    "negative places": Rewrite(by_time, timed(), [TABLE, IN_16_BITS]),
    "in 8 bits, [h,t]": Rewrite(by_head_and_time, timed("h,t"), [TABLE, NARROW]),
    "the index of another sample": Rewrite(
        by_time, timed(), [TABLE, on("index", aten.flip.default, [0])]
    ),
    "the index of another row": Rewrite(
        by_time, timed(), [TABLE, on("index", aten.flip.default, [1])]
    ),
    "one row of the index": Rewrite(
        by_time, timed(index="b,kv_idx"), [TABLE, on("index", aten.select.int, 1, 0)]
    ),
    "another place by time": Rewrite(
        by_both, BOTH.format(CAUSAL, DISTANCE, "mod(add(a1,1),7)"), [TABLE, INDEX, TIMES]
    ),
    "places at the end by time": Rewrite(
        by_both, BOTH.format(CAUSAL, DISTANCE, "minimum(mod(a1,7),5)"),
        [TABLE, INDEX, TIMES],
    ),
    "another mask": Rewrite(
        by_both, BOTH.format("gt(q_idx,kv_idx)", DISTANCE, "mod(a1,7)"),
        [TABLE, INDEX, TIMES],
    ),
    "padded, repeated and viewed, off by one": Rewrite(
        rearranged, heads_first(f"add({APART},{N})")
    ),
    "padded, repeated and viewed, the other way": Rewrite(
        rearranged, heads_first(f"add(sub(q_idx,kv_idx),{M - 1})")
    ),
    "another fill": Rewrite(padded, FILLED.format(0.0)),
    "no fill": Rewrite(padded, heads_first(f"mod({APART},{PLACES})")),
    "rounded where nothing is": Rewrite(
        by_head_and_distance, f"a0:f[h,t]; silu(add(s,bf16(lookup(a0,{DISTANCE}))))"
    ),
}  # fmt: skip
OF_GRADIENTS = {"no gradient", "a gradient of half the scores", "the table cut"}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("grad", [True, False])
def test_right_ones_pass(name: str, grad: bool) -> None:
    assert RIGHT[name].verdict(grad) is None


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("grad", [True, False])
def test_wrong_ones_are_refuted(name: str, grad: bool) -> None:
    verdict = WRONG[name].verdict(grad)
    if name in OF_GRADIENTS and not grad:
        assert verdict is None
        return
    assert verdict is not None and verdict.invalid, verdict
    about = ("gradient", "reach") if name in OF_GRADIENTS else ("other weights",)
    assert any(part in verdict.reason for part in about), verdict.reason


LONGEST = 16


def jagged(q, k, v, offsets, table):
    pad = torch.ops.gdpa.jagged_to_padded_dense
    query, key, value = (pad(x, offsets, LONGEST).transpose(1, 2) for x in (q, k, v))
    place = torch.arange(LONGEST)[:, None] - torch.arange(LONGEST) + LONGEST - 1
    out = F.silu(query @ key.mT + table[:, place]) @ value
    return torch.ops.gdpa.dense_to_jagged(out.transpose(1, 2), offsets, q.shape[0])


@pytest.mark.parametrize(("last", "right"), [(15, True), (14, False), (16, False)])
def test_jagged_sides(last: int, right: bool) -> None:
    """The matcher's call, with the table in place of the bias."""

    def tamper(graph: Graph) -> None:
        call = fused(graph)
        table = called(graph, call, KEPT, operand(graph, "table"))
        text = heads_first(f"add(sub(q_idx,kv_idx),{last})")
        call.args = (*call.args[:3], [table], call.args[4], text, *call.args[6:])

    inputs = [torch.randn(24, H, D, requires_grad=True) for _ in range(3)]
    inputs += [torch.tensor([0, 5, 5, 12, 15, 24])]
    inputs += [torch.randn(H, 2 * LONGEST - 1, requires_grad=True)]
    (verdict,) = verdicts(jagged, inputs, tamper)
    assert (verdict is None) if right else verdict.invalid, verdict


@pytest.mark.parametrize("last", [False, True])
def test_a_place_of_thousands(last: bool) -> None:
    """The ends of a long table are seen."""
    long = 1024

    def function(q, k, v, table):
        place = torch.arange(long)[:, None] - torch.arange(long) + long - 1
        return F.silu(q @ k.mT + table[:, place]) @ v

    place = f"minimum(add(sub(q_idx,kv_idx),{long - 1}),{2 * long - 3 + last})"
    inputs = [torch.randn(1, H, long, D, requires_grad=True) for _ in range(3)]
    inputs += [torch.randn(H, 2 * long - 1, requires_grad=True)]
    (verdict,) = verdicts(function, inputs, rewrite=Rewrite(function, heads_first(place)))
    assert (verdict is None) if last else verdict.invalid, verdict
