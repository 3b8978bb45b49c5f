"""Biases that calls make of a table without an index, as the research code of HSTU does.

pad, repeat, slices and views: the program looks the table up at a place that it computes. Results
and gradients are eager's in fp64, and the place is the least that says it.
"""

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from gdpa_inductor.patterns import profit
from gdpa_inductor.patterns.reading import rearranged
from gdpa_inductor.program.expr import Expr, fold, torch_apply
from gdpa_inductor.program.integers import ranges
from gdpa_inductor.report.sections import match_lines
from tests._recorder import Recorder
from tests.operands import generator_of

B, H, N, D = 2, 3, 12, 4
APART = "sub(kv_idx,q_idx)"
DISTANCE = f"lookup(a0,add({APART},{N - 1}))"


def skewed(table: Tensor, n: int = N) -> Tensor:
    """[..., 2n - 1] to [..., n, n], element (i, j) at j - i + n - 1."""
    heads = table.shape[:-1]
    t = F.pad(table[..., : 2 * n - 1], [0, n]).repeat(*[1 for _ in heads], n)
    t = t[..., :-n].reshape(*(heads or [1]), n, 3 * n - 2)
    r = (2 * n - 1) // 2
    return t[..., r:-r]


def lines_of(flat: Tensor, length: int) -> Tensor:
    """[n * length or more] to [n, length]."""
    return flat[: N * length].view(N, length)


def by_joining_zeros(t):
    zeros = torch.zeros(N, dtype=t.dtype)
    return lines_of(torch.cat([t, zeros]).repeat(N), 3 * N - 2)[:, N - 1 : 1 - N]


def by_expanding(t):
    padded = F.pad(t, [0, N]).expand(N, 3 * N - 1)
    return lines_of(padded.reshape(-1), 3 * N - 2)[:, N - 1 : 1 - N]


def relative_shift(t):
    """A column of zeros, as Music Transformer moves q·r, of one line for all queries."""
    x = F.pad(t.expand(N, N), (1, 0))
    return x.reshape(N + 1, N)[1:].view(N, N)


READ: dict[str, tuple[Callable, tuple[int, ...], str]] = {
    "as in the research code": (skewed, (2 * N - 1,), DISTANCE),
    "of a longer table": (skewed, (40,), DISTANCE),
    "of heads": (skewed, (H, 2 * N - 1), DISTANCE),
    "of heads, of a longer table": (skewed, (H, 77), DISTANCE),
    "of one head": (lambda t: skewed(t[1]), (H, 2 * N - 1), DISTANCE),
    "transposed": (
        lambda t: skewed(t).mT, (2 * N - 1,), f"lookup(a0,add(sub(q_idx,kv_idx),{N - 1}))"
    ),
    "for each sample": (
        lambda t: skewed(t).unsqueeze(1).repeat(B, H, 1, 1), (2 * N - 1,), DISTANCE
    ),
    "joined with zeros": (by_joining_zeros, (2 * N - 1,), DISTANCE),
    "expanded": (by_expanding, (2 * N - 1,), DISTANCE),
    "by the sum": (
        lambda t: t.repeat(N + 1)[: 2 * N * N].view(N, 2 * N)[:, :N], (2 * N - 1,),
        "lookup(a0,add(kv_idx,q_idx))",
    ),
    "turned round": (
        lambda t: skewed(t.flip(0)), (2 * N - 1,), f"lookup(a0,add(sub(q_idx,kv_idx),{N - 1}))"
    ),
    "every second place": (
        lambda t: skewed(t[::2]), (4 * N - 2,),
        f"lookup(a0,add(sub(mul(kv_idx,2),mul(q_idx,2)),{2 * N - 2}))",
    ),
    "scaled": (lambda t: skewed(t) * 2.0, (2 * N - 1,), f"mul({DISTANCE},2.0)"),
    "with the fill in front": (
        lambda t: lines_of(F.pad(t, [N - 1, 1], value=-0.5).repeat(N), 2 * N - 1)[:, N - 1 :],
        (N,), f"t0={APART}; silu(add(s,where(ge(t0,0),lookup(a0,maximum(t0,0)),-0.5)))",
    ),
    "with the fill behind": (
        lambda t: lines_of(F.pad(t, [-1, N + 1]).repeat(N), 3 * N - 2)[:, N - 1 : 1 - N],
        (2 * N - 1,),
        f"t0=add({APART},{N}); "
        f"silu(add(s,where(lt(t0,{2 * N - 1}),lookup(a0,minimum(t0,{2 * N - 2})),0.0)))",
    ),
    "around the end": (
        lambda t: lines_of(F.pad(t, [0, N], value=0.25).repeat(N), 3 * N - 2)[:, :N],
        (2 * N - 1,), f"mod({APART},{3 * N - 1})",
    ),
    "shifted": (relative_shift, (N,), f"mod(sub({APART},1),{N + 1})"),
    "rolled": (
        lambda t: lines_of(t.roll(2).repeat(N), 2 * N - 2)[:, :N], (2 * N - 1,), "lookup(a0,mod("
    ),
    "rolled across lines": (
        lambda t: lines_of(t.repeat(N), N + 1).roll(-1)[:, :N], (2 * N - 1,), "lookup(a0,mod("
    ),
    "of one place": (
        lambda t: lines_of(F.pad(t, [0, N]).repeat(N), N), (1,),
        f"where(lt(mod({APART},{N + 1}),1),a0,0.0)",
    ),
    "of heads one by one": (
        lambda t: torch.cat([skewed(x) for x in t]), (H, 2 * N - 1), f"silu(add(s,{DISTANCE}))"
    ),
}  # fmt: skip


def attention(bias: Callable) -> Callable:
    return lambda q, k, v, table: F.silu(q @ k.mT + bias(table)) @ v


def operands(sizes, n: int = N, dtype=torch.float64) -> list[Tensor]:
    generator = generator_of(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()
    return [*(draw(B, H, n, D) for _ in range(3)), draw(*sizes)]


def results(function, leaves) -> list[Tensor]:
    """The output and all gradients."""
    output = function(*leaves)
    weights = torch.randn(output.shape, generator=generator_of(7), dtype=output.dtype)
    return [output, *torch.autograd.grad(output, leaves, weights)]


def compared(function, leaves, **options) -> Recorder:
    """Its recorder, after results and gradients were compared with eager's."""
    recorder = Recorder()
    mine = torch.compile(function, backend=recorder, fullgraph=True, **options)
    torch.testing.assert_close(results(mine, leaves), results(function, leaves))
    assert len(recorder.matches) == 1, recorder.why()
    return recorder


def program_of(recorder: Recorder) -> str:
    return str(recorder.matches[0].problem.program)


@pytest.mark.parametrize("name", READ)
def test_a_program_looks_it_up(name):
    bias, sizes, place = READ[name]
    recorder = compared(attention(bias), operands(sizes))
    assert place in program_of(recorder) and not recorder.matches[0].problem.stored_aux()


@pytest.mark.parametrize("place", [0, N - 1, 2 * N - 2])
def test_every_place_of_the_table_has_its_gradient(place):
    """One that is 1 at this place: no other element counts."""
    q, k, v, table = operands((2 * N - 1,))
    function = attention(lambda t: skewed(t * F.one_hot(torch.tensor(place), 2 * N - 1)))
    compared(function, [q, k, v, table])


def test_a_table_of_queries_is_no_table_of_one_place():
    """It has the queries' dim, of which another query's line would be read."""

    def model(q, k, v, table):
        x = F.pad(table, (1, 0)).reshape(N + 1, N)[1:].view(N, N)
        return F.silu(q @ k.mT + x) @ v

    assert "lookup(" not in program_of(compared(model, operands((N, N))))


def turned_and_joined(t, times=4):
    """Twice as many pieces each time."""
    for _ in range(times):
        t = torch.cat([t, t.flip(0)])
    return lines_of(t, N + 1)[:, :N]


STORED: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "by strides": (lambda t: t.flip(0).as_strided((N, N), (1, 1)), (2 * N - 1,)),
    "of windows": (lambda t: t.unfold(0, N, 1).flip(0), (2 * N - 1,)),
    "padded by itself": (
        lambda t: lines_of(F.pad(t[None], [0, N], mode="circular")[0].repeat(N), 3 * N - 2)[:, :N],
        (2 * N - 1,),
    ),
    "of cumulated elements": (lambda t: skewed(t.cumsum(0))[:, :, ::1], (2 * N - 1,)),
    "joined line by line": (
        lambda t: torch.cat([t[None, N - 1 - i : 2 * N - 1 - i] for i in range(N)]),
        (2 * N - 1,),
    ),
    "of many pieces": (turned_and_joined, (N,)),
    "joined with nothing": (
        lambda t: torch.cat([torch.zeros(0, dtype=t.dtype), skewed(t)[0]]),
        (2 * N - 1,),
    ),
}


@pytest.mark.parametrize("name", STORED)
def test_what_is_no_such_call_is_stored(name):
    """The sums of a table are a table: they are what is looked up."""
    bias, sizes = STORED[name]
    recorder = compared(attention(bias), operands(sizes))
    assert ("lookup(" in program_of(recorder)) == (name == "of cumulated elements")
    assert len(recorder.matches[0].problem.program.aux) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fill_rounds_as_the_table_does(dtype):
    """0.1 of a table in fewer bits than the scores."""

    def model(q, k, v, table):
        t = F.pad(table.to(dtype), [N - 1, 1], value=0.1)
        return F.silu(q @ k.mT + lines_of(t.repeat(N), 2 * N - 1)[:, N - 1 :]) @ v

    leaves, recorder = operands((N,)), Recorder()
    mine = torch.compile(model, backend=recorder, fullgraph=True)
    torch.testing.assert_close(mine(*leaves), model(*leaves))
    assert recorder.matches, recorder.why()


def test_sizes_that_vary():
    """The batch may. Places are computed from sizes that are known only."""
    leaves = operands((2 * N - 1,))
    for x in leaves[:3]:
        torch._dynamo.mark_dynamic(x, 0)
    assert DISTANCE in program_of(compared(attention(skewed), leaves))
    function = lambda q, k, v, table: attention(lambda t: skewed(t, q.shape[-2]))(q, k, v, table)
    leaves = operands((2 * N - 1,))
    for x in leaves[:3]:
        torch._dynamo.mark_dynamic(x, 2)
    recorder = compared(function, leaves)
    assert "lookup(" not in program_of(recorder) and not recorder.graphs[0].guards_added


def written_after(q, k, v, table):
    stored = table * 1.0
    bias = skewed(stored)
    with torch.no_grad():
        stored.mul_(3.0)
    return F.silu(q @ k.mT + bias) @ v


def written_before(q, k, v, table):
    stored = table * 1.0
    stored[3:5] = 0.5
    return F.silu(q @ k.mT + skewed(stored)) @ v


def bias_written(q, k, v, table):
    bias = skewed(table) * 1.0
    bias[:, 2] = 0.25
    return F.silu(q @ k.mT + bias) @ v


def a_copy_written_on_the_way(q, k, v, table):
    t = F.pad(table, [0, N]).repeat(N)
    t[5:9].mul_(2.0)
    return F.silu(q @ k.mT + lines_of(t, 3 * N - 2)[:, N - 1 : 1 - N]) @ v


def written_through_a_view(q, k, v, table):
    t = F.pad(table, [0, N]).repeat(N)
    lines = lines_of(t, 3 * N - 2)
    t[7].zero_()
    return F.silu(q @ k.mT + lines[:, N - 1 : 1 - N]) @ v


def used_twice(q, k, v, table):
    t = lines_of(F.pad(table, [0, N]).repeat(N), 3 * N - 2)
    bias = t[:, N - 1 : 1 - N] + t[:, N - 2 : -N]
    return F.silu(q @ k.mT + bias) @ v * t.sum()


def of_a_cut_table(q, k, v, table):
    return F.silu(q @ k.mT + skewed(table.detach()) * skewed(table)) @ v


def without_gradients(q, k, v, table):
    with torch.no_grad():
        first = skewed(table)
    return F.silu(q @ k.mT + first + skewed(table.flip(0))) @ v


def of_two_layers(q, k, v, table):
    bias = skewed(table)
    y = F.silu(q @ k.mT + bias) @ v
    return F.silu(y @ k.mT + bias.mT) @ v


def in_a_checkpoint(q, k, v, table):
    return checkpoint(attention(skewed), q, k, v, table, use_reentrant=False)


def as_an_addend(q, k, v, table):
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return F.silu(torch.baddbmm(skewed(table), q, k.mT)) @ v


def never_read(q, k, v, table):
    """All of it is filled: the gradient of the table is zeros, and not none."""
    t = F.pad(table, [N * N, 0])[: N * N].view(N, N)
    return F.silu(q @ k.mT + t[:, :N] * 1.0) @ v


def joined_and_never_read(q, k, v, table):
    t = torch.cat([table.detach(), table])[: 2 * N - 1]
    return F.silu(q @ k.mT + skewed(t)) @ v


HOSTILE = [
    written_after, written_before, bias_written, a_copy_written_on_the_way, written_through_a_view,
    used_twice, of_a_cut_table, without_gradients, of_two_layers, in_a_checkpoint, as_an_addend,
    never_read, joined_and_never_read,
]  # fmt: skip


@pytest.mark.parametrize("function", HOSTILE)
def test_writes_and_other_uses(function):
    leaves, recorder = operands((2 * N - 1,)), Recorder()
    mine = torch.compile(function, backend=recorder, fullgraph=True)
    torch.testing.assert_close(results(mine, leaves), results(function, leaves))
    assert recorder.matches, recorder.why()


def test_the_caller_may_change_the_table_before_the_backward():
    leaves = operands((2 * N - 1,))
    wanted = results(attention(skewed), leaves)
    output = torch.compile(attention(skewed), backend=Recorder(), fullgraph=True)(*leaves)
    weights = torch.randn(output.shape, generator=generator_of(7), dtype=output.dtype)
    with torch.no_grad():
        leaves[3].zero_()
    torch.testing.assert_close([*torch.autograd.grad(output, leaves, weights)], wanted[1:])


def test_heads_of_keys_that_are_repeated_are_no_table():
    """Factors stay as they are, and the mask stays a part of the program."""

    def model(q, k, v, table):
        k, v = (x.view(B, 1, N, D).repeat(1, H, 1, 1) for x in (k, v))
        return F.silu(q @ k.mT + skewed(table)).tril() @ v

    q, k, v, table = operands((2 * N - 1,))
    keys = [x[:, 0].reshape(B * N, D).detach().requires_grad_() for x in (k, v)]
    program = program_of(compared(model, [q, *keys, table]))
    assert DISTANCE in program and "le(kv_idx,q_idx)" in program


def test_where_a_bias_is_rather_stored(monkeypatch):
    monkeypatch.setattr(profit, "rather_stored", lambda *_: "for a test")
    recorder = compared(attention(lambda t: skewed(t) * 2.0), operands((2 * N - 1,)))
    assert "lookup(" not in program_of(recorder)
    (note,) = (x for x in match_lines(recorder.matches[0]) if x.startswith("bias stays"))
    assert "for a test" in note


# Any calls in a row, element by element


def any_call(rng: random.Random, x: Tensor) -> Callable[[Tensor], Tensor]:
    dim = rng.randrange(x.dim())
    size = x.shape[dim]
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda x, a=rng.randrange(size), s=rng.randint(1, 2): x[
            (*[slice(None)] * dim, slice(a, None, s))
        ],
        lambda x, w=(rng.randint(-1, 3), rng.randint(0, 3)): F.pad(
            x, [0, 0] * (x.dim() - 1 - dim) + list(w), value=-1.0
        ),
        lambda x, n=rng.randint(1, 3): x.repeat(*[n if d == dim else 1 for d in range(x.dim())]),
        lambda x: x.unsqueeze(dim).expand(*x.shape[:dim], 3, *x.shape[dim:]),
        lambda x, s=rng.randint(-3, 3), d=rng.choice([(), dim, dim]): x.roll(s, d),
        lambda x: x.flip(dim),
        lambda x: x.transpose(0, dim),
        lambda x: torch.cat([x, x.new_zeros(x.shape), x], dim),
        lambda x: x.select(dim, size - 1) if x.dim() > 1 else x,
        lambda x: x.reshape(-1),
    ]
    count = x.numel()
    divisors = [n for n in range(1, count + 1) if count % n == 0]
    first = rng.choice(divisors)
    calls += [lambda x: x.reshape(first, count // first)] * 3
    return rng.choice(calls)


@pytest.mark.parametrize("seed", range(60))
def test_any_calls_in_a_row(seed, monkeypatch):
    monkeypatch.setattr(rearranged, "MOST_PIECES", 10_000)
    rng, table = random.Random(seed), torch.arange(7.0)
    calls, x = [], table
    while len(calls) < 7:
        call = any_call(rng, x)
        made = call(x)
        if 0 < made.numel() < 1500 and made.dim() < 4 and 0 not in made.shape:
            calls.append(call)
            x = made

    def all_of_them(x: Tensor) -> Tensor:
        for call in calls:
            x = call(x)
        return x + 0

    traced = make_fx(all_of_them, tracing_mode="fake")(table)
    (end,) = traced.graph.find_nodes(op="output")[0].all_input_nodes
    positions = [Expr("index", (), d, "i") for d in range(x.dim())]
    limits = lambda t: ranges([t], lambda leaf: (0, x.shape[leaf.value] - 1))[t]
    pieces = rearranged.pieces(
        end.all_input_nodes[0], tuple({position: 1} for position in positions), limits
    )
    grid = torch.meshgrid(*map(torch.arange, x.shape), indexing="ij")
    leaf = lambda y: torch.tensor(y.value) if y.is_const else grid[y.value]
    evaluated = lambda t: fold([t], leaf, torch_apply(torch.float64))[0]
    mine = torch.full_like(x, torch.nan)
    for condition, source, at in pieces[::-1]:
        if source.op == "placeholder":
            place = evaluated(rearranged.term(at[0])).expand(x.shape)
            assert 0 <= place.min() and place.max() < 7, "outside of the table"
            element = table[place]
        else:
            element = torch.tensor(-1.0 if "pad" in str(source.target) else 0.0)
        mine = torch.where(evaluated(condition), element, mine)
    assert torch.equal(mine, x)
