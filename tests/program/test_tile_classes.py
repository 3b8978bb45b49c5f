"""masks: what `classify` says of tiles, against every element of them."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from gdpa_inductor.program.expr import OPS, POSITIONS, Expr, call, postorder
from gdpa_inductor.program.score_mod import ScoreMod, formula
from gdpa_inductor.program.simplify import FALSE, TRUE
from gdpa_inductor.program.tile_classes import TileClasses, classify
from tests import mask_grammar as grammar
from tests._tiles import Grid
from tests.literals import LITERALS

SIZES = (2, 3, 40, 36)
SEEDS = 400


def operands(seed: int) -> list[torch.Tensor]:
    """Of `mask_grammar.AUX`, on their axes."""
    b, h, n, m = SIZES
    source = torch.Generator().manual_seed(seed)
    draw = lambda *shape, top: torch.randint(0, top, shape, generator=source)
    return [
        draw(b, 1, 1, 1, top=m + 4),
        draw(1, h, 1, 1, top=m + 4),
        draw(b, 1, n, 1, top=9).cumsum(2),
        draw(b, 1, 1, m, top=9).cumsum(3) < 100,
        draw(b, 1, 1, 1, top=2).bool(),
        torch.randn(1, h, 1, 1, generator=source),
        torch.randn(1, 1, n, m, generator=source),
    ]


def grid(seed: int, dtype: torch.dtype = torch.float32) -> Grid:
    source = torch.Generator().manual_seed(seed)
    tile = [(1, 1), (8, 8), (16, 4), (7, 11), (40, 9), (4, 36)][seed % 6]
    scores = {name: torch.randn(SIZES, generator=source) * 3 for name in "sg"}
    return Grid(SIZES, tile, operands(seed), [SIZES[2]], scores, dtype)


def terms_of(program: ScoreMod, seed: int) -> list[Expr]:
    """The terms of one kernel: of the forward, or of a part of the backward."""
    terms = program.gradients
    kernels = [
        [program.weight],
        [program.weight, terms.score],
        [terms.score, *terms.aux],
        [program.weight, terms.score, *terms.aux],
    ]
    return [term for term in kernels[seed % 4] if term is not None]


def check(classes: TileClasses, roots: list[Expr], at: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """Raise where a verdict is wrong; the verdicts."""
    zero, full = at.verdicts(classes)
    for root, value in zip(roots, at.elements(roots)):
        nothing = at.tiles(value == 0, "all")
        assert not (zero & ~nothing).any(), f"zero is wrong: {formula(classes.zero)}: {root}"
    for term, left, value in zip(
        classes.full_terms, at.elements(classes.full_terms), at.elements(roots)
    ):
        same = at.tiles((left == value) | (left.isnan() & value.isnan()), "all")
        assert not (full & ~same).any(), f"full is wrong: {formula(classes.full)}: {term}"
    if classes.keep is not None:
        check_keep(classes.keep, classes.full_terms, roots, at)
    return zero, full


def check_keep(keep: Expr, full_terms: Sequence[Expr], roots: list[Expr], at: Grid) -> None:
    """Raise where a term is not its full term, or 0 where `keep` fails."""
    (condition,) = at.elements([keep])
    for left, value in zip(at.elements(full_terms), at.elements(roots), strict=True):
        chosen = torch.where(condition, left, 0.0)
        same = (chosen == value) | (chosen.isnan() & value.isnan())
        assert same.all(), f"keep is wrong: {formula(keep)}"


@pytest.mark.parametrize("part", range(4))
def test_random_programs_are_never_misjudged(part: int):
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        _, _, weight = grammar.Draw(seed, SIZES[3]).program()
        program = ScoreMod(weight, grammar.AUX)
        roots = terms_of(program, seed // 6)
        bounded = [[], [grammar.PADDING, grammar.TIMES]][seed % 2]
        try:
            check(classify(roots, grammar.AUX, bounded), roots, grid(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {program}") from error


def unbounded(node: Expr) -> bool:
    """Operations that give no bounds, whatever they are given."""
    rounds = node.op == "int" and node.args[0].kind == "f"
    return rounds or node.op in ("exp", "log", "sqrt", "tanh")


def test_most_masked_tiles_are_found():
    """What is left are terms whose two sides depend on each other, and operands without bounds."""
    totals: Counter[str] = Counter()
    for seed in range(SEEDS):
        name, condition, weight = grammar.Draw(seed, SIZES[3]).program()
        if any(map(unbounded, postorder([condition]))):
            continue
        at = grid(seed)
        classes = classify([weight], grammar.AUX, [grammar.PADDING, grammar.TIMES])
        zero, _ = check(classes, [weight], at)
        (counts,) = at.elements([condition])
        masked = ~at.tiles(counts, "any").expand_as(zero)
        if grammar.SPELLINGS[name].vanishes:
            totals["zero"] += int((zero & masked).sum())
            totals["masked"] += int(masked.sum())
        else:
            assert not zero.any() or weight.is_const
            totals["kept"] += int(masked.sum())
    assert totals["kept"] > 1000
    assert totals["zero"] > 0.98 * totals["masked"] > 10_000, totals


def test_most_masks_are_one_condition():
    """Of what models write, all that makes a masked score weigh 0, of the weight and its
    derivative; but where an operand or a rounding tells what counts."""
    left: Counter[bool] = Counter()
    for seed in range(SEEDS):
        name, condition, weight = grammar.Draw(seed, SIZES[3]).program()
        program = ScoreMod(weight, grammar.AUX)
        classes = classify([weight, program.gradients.score], grammar.AUX)
        check(classes, [weight, program.gradients.score], grid(seed))
        inside = any(x.op in POSITIONS for x in postorder([condition]))
        if inside and grammar.SPELLINGS[name].vanishes and classes.skips:
            assert classes.keep is not None, f"{seed}: {formula(weight)}"
            left[classes.keep is TRUE] += 1
    assert left[False] > 0.9 * left.total() > 50, left


def test_another_rounding_moves_no_element_out():
    """Bounds in fp32 hold for elements in fp64: what a fused multiply-add changes is less."""
    decided = 0
    for seed in range(SEEDS):
        draw = grammar.Draw(seed, SIZES[3])
        condition = call(draw.rng.choice(["lt", "ge"]), draw.real(4), draw.real(2) + 1e-3)
        weight = grammar.SPELLINGS["where"].weight(condition)
        classes = classify([weight], grammar.AUX, [grammar.TIMES])
        zero, full = grid(seed).verdicts(classes)
        (counts,) = grid(seed, torch.float64).elements([condition])
        wide = grid(seed).tiles
        assert not (zero & wide(counts, "any")).any(), f"seed {seed}: {formula(weight)}"
        if classes.full is not TRUE:
            assert not (full & ~wide(counts, "all")).any(), f"seed {seed}: {formula(weight)}"
        decided += int((zero | full).sum())
    assert decided > 10_000


def test_only_isnan_and_lookup_have_no_rule():
    assert [name for name, op in OPS.items() if op.interval is None] == ["isnan", "lookup"]


VANISHING = [
    name
    for name, op in OPS.items()
    if op.interval is not None and op.interval.__qualname__.startswith("vanishing")
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", VANISHING)
def test_what_vanishes_is_exactly_zero(name: str, dtype: torch.dtype):
    params = LITERALS.get(name, [()])[0]
    at = lambda x: OPS[name].torch(torch.tensor(x, dtype=dtype), *params)
    fills = [-3.0, -1e3, -2e3, -1e9, -3e38, -math.inf, -2.9, -10.0, 0.0]
    zero = {x: vanishes(name, x, *params) for x in fills}
    assert zero[-1e9] and not zero[-2.9]
    assert [x for x in fills if zero[x] and at(x) != 0] == []
    assert zero[-math.inf] == bool(at(-math.inf) == 0)


def vanishes(name: str, fill: float, *params: float) -> bool:
    """Whether `name` of a mask's fill is known to be 0 under the mask."""
    masked = call("where", call("lt", grammar.INDEX["q_idx"], 8), fill, grammar.S)
    classes = classify([call(name, masked, *params)], ())
    zero, _ = Grid((1, 1, 8, 8), (8, 8)).verdicts(classes)
    return bool(zero)


CAUSAL = "q_idx_hi < kv_idx_lo", "kv_idx_hi <= q_idx_lo"
OPEN = "false", "true"
BY_HAND = {
    "silu(s)": (*OPEN, "silu(s)", "true"),
    "where(ge(q_idx,kv_idx),silu(s),0.0)": (*CAUSAL, "silu(s)", "q_idx >= kv_idx"),
    "mul(silu(s),sub(1.0,float(lt(q_idx,kv_idx))))": (*CAUSAL, "silu(s)", "kv_idx <= q_idx"),
    "sigmoid(add(s,where(lt(q_idx,kv_idx),-inf,0.0)))": (
        *CAUSAL, "sigmoid(s)", "kv_idx <= q_idx",
    ),
    # Two masks, each of which is enough.
    "a0:i[b]; where(ge(q_idx,kv_idx),mul(silu(s),float(lt(kv_idx,a0))),0.0)": (
        "(q_idx_hi < kv_idx_lo) | (a0 <= kv_idx_lo)", "(kv_idx_hi < a0) & (kv_idx_hi <= q_idx_lo)",
        "silu(s)", "(kv_idx < a0) & (q_idx >= kv_idx)",
    ),
    "a0:i[b]; div(mul(silu(s),float(lt(kv_idx,a0))),float(i0))": (
        "(a0 <= kv_idx_lo) & (float(i0) != 0.0)", "kv_idx_hi < a0", "silu(s)/float(i0)",
        "kv_idx < a0",
    ),
    # A mask of one operand is its own bound where the operand has one element a tile.
    "a0:b[b]; where(a0,relu(s),0.0)": ("not(a0)", "a0", "relu(s)", "a0"),
    # An operand that varies in the tile stays; the condition beside it is still dropped.
    "a0:b[b,kv_idx]; where(and(a0,ge(q_idx,kv_idx)),relu(s),0.0)": (
        *CAUSAL, "where(a0, relu(s), 0.0)", "q_idx >= kv_idx",
    ),
    # A choice between two functions masks nothing, a scale of exactly 0 is no mask.
    "where(lt(h,2),silu(s),relu(s))": (*OPEN, "where(h < 2, silu(s), relu(s))", "true"),
    "a0:f[h]; mul(silu(s),a0)": (*OPEN, "silu(s)*a0", "true"),
    "mul(silu(s),float(sub(q_idx,kv_idx)))": (*OPEN, "silu(s)*float(q_idx - kv_idx)", "true"),
}  # fmt: skip


@pytest.mark.parametrize("text", BY_HAND)
def test_classes_read_as_written_by_hand(text: str):
    zero, full, left, keep = BY_HAND[text]
    program = ScoreMod.parse(text)
    classes = classify([program.weight], program.aux)
    assert [formula(classes.zero), formula(classes.full)] == [zero, full]
    assert [formula(term) for term in classes.full_terms] == [left]
    assert classes.keep is not None and formula(classes.keep) == keep
    assert classes.skips == (zero != "false")
    assert classes.reads == ((0,) if "a0" in zero + full else ())


def test_a_mask_that_learns_is_never_left_out():
    """The gradient of a multiplicative mask needs the score under it."""
    program = ScoreMod.parse("a0:f[q_idx,kv_idx]; mul(silu(s),mul(a0,float(ge(q_idx,kv_idx))))")
    terms = program.gradients
    assert classify([program.weight, terms.score], program.aux).skips
    assert classify([program.weight, terms.score, terms.aux[0]], program.aux).skips  # causal
    learned = ScoreMod.parse(
        "a0:f[q_idx,kv_idx]; a1:f[b]; mul(silu(s),mul(a0,sub(a1,float(lt(q_idx,kv_idx)))))"
    )
    terms = learned.gradients
    assert not classify([learned.weight, *terms.aux], learned.aux).skips
    padded = ScoreMod.parse("a0:f[kv_idx]; mul(silu(s),a0)")
    terms = padded.gradients
    assert classify([padded.weight, terms.score], padded.aux, bounded=[0]).skips
    assert not classify([padded.weight, *terms.aux], padded.aux, bounded=[0]).skips


def test_masks_that_are_no_one_condition():
    """0/0 is NaN where the operand is 0; and one of two terms has no mask."""
    divided = ScoreMod.parse("a0:f[b]; div(where(ge(q_idx,kv_idx),silu(s),0.0),a0)")
    assert classify([divided.weight], divided.aux).keep is None
    masked = ScoreMod.parse("where(ge(q_idx,kv_idx),silu(s),0.0)").weight
    assert classify([masked, grammar.S], ()).keep is None


@pytest.mark.parametrize("masked", ["float(floordiv(i0,2))", "float(maximum(sub(i0,8),0))"])
def test_what_is_0_for_one_size_only_is_kept(masked: str):
    program = ScoreMod.parse(f"where(le(kv_idx,q_idx),silu(s),{masked})")
    assert classify([program.weight], ()).keep is None
    for number, is_kept in (("i0", True), ("where(eq(i0,0),0,i0)", False)):
        divided = ScoreMod.parse(f"div(where(le(kv_idx,q_idx),silu(s),0.0),float({number}))")
        assert (classify([divided.weight], ()).keep is not None) is is_kept


@pytest.mark.parametrize("bound", ["minimum(a0,-inf)", "maximum(a0,inf)"])
@pytest.mark.parametrize(
    "text", ["mul(sigmoid(s),sign({}))", "where(le(where(a1,s,{}),inf),0.0,sigmoid(s))"]
)
def test_a_nan_is_not_lost_beside_an_infinity(text: str, bound: str):
    """The sign of NaN is 0, and NaN is not below infinity."""
    program = ScoreMod.parse("a0:f[b,q_idx,kv_idx]; a1:b[b,kv_idx]; " + text.format(bound))
    values = torch.randn(2, 1, 8, 8)
    values[:, :, ::3, 1::2] = torch.nan
    aux = [values, (torch.arange(16) % 5 == 0).view(2, 1, 1, 8)]
    at = Grid((2, 1, 8, 8), (4, 4), aux, scores={"s": torch.ones(2, 1, 8, 8)})
    check(classify([program.weight], program.aux, [0, 1]), [program.weight], at)


def test_no_terms_are_no_reason_to_skip():
    assert classify([], ()) == TileClasses(FALSE, TRUE, (), TRUE)


def test_deep_programs_are_lifted():
    """Programs are folded, not recursed into; a verdict that costs too much is none."""
    n, m, index = grammar.INDEX["q_idx"], grammar.INDEX["kv_idx"], grammar.INDEX["q_idx"]
    skips = {}
    for step in range(5000):
        index = call("maximum", index, call("sub", m, step % 7))
        if step in (50, 4999):
            weight = call("where", call("lt", index, n + 3), grammar.S, 0.0)
            skips[step] = classify([weight], ()).skips
    assert skips == {50: True, 4999: False}


def test_a_function_per_head_keeps_the_mask_readable():
    """A choice among many heads is judged for all of them at once."""
    weight, head = grammar.S, grammar.INDEX["h"]
    for number in range(64):
        weight = call("where", call("eq", head, number), grammar.S * float(number + 2), weight)
    causal = call("ge", grammar.INDEX["q_idx"], grammar.INDEX["kv_idx"])
    program = ScoreMod(call("where", causal, weight, 0.0))
    classes = classify([program.weight, program.gradients.score], ())
    assert (formula(classes.zero), formula(classes.full)) == CAUSAL
    terms = [program.weight, program.gradients.score]
    assert len(list(postorder(classes.full_terms))) < len(list(postorder(terms)))
