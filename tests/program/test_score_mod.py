"""score_mod: text and program are the same thing; bad text is refused; access maps; formulas."""

import pickle
import random
import re

import pytest

from gdpa_inductor.program.expr import (
    GRAD,
    INDEX,
    OPS,
    SCORE,
    Expr,
    aux,
    call,
    const,
    postorder,
    scalar,
)
from gdpa_inductor.program.score_mod import AXES, Aux, ScoreMod, ScoreModError, terms_text


def random_program(rng: random.Random) -> ScoreMod:
    """Any program of the grammar: every kind, leaf and operation of the table can occur."""
    declared = tuple(random_access(rng) for _ in range(rng.randrange(4)))
    pool: dict[str, list[Expr]] = {
        "f": [SCORE, *(const(rng.choice(FLOATS)) for _ in range(2))],
        "i": [*INDEX.values(), scalar(rng.randrange(3)), const(rng.randrange(-9, 9))],
        "b": [const(rng.random() < 0.5)],
        "t": [],
    }
    for number, spec in enumerate(declared):
        pool[spec.leaf_kind].append(aux(number, spec.leaf_kind))
    for _ in range(rng.randrange(1, 40)):
        name = rng.choice(sorted(OPS))
        kinds, result = rng.choice(OPS[name].kinds).split(">")
        if name == "random16":
            seeds = [n for n, spec in enumerate(declared) if (spec.kind, spec.access) == ("i", ())]
            for seed in seeds[:1]:
                pool["i"].append(call(name, aux(seed, "i"), *INDEX.values()))
            continue
        if name == "lookup":
            if pool["t"]:  # a table has one place
                place = rng.choice(pool["i"])
                pool["f"].append(call(name, pool["t"].pop(), place))
            continue
        plain = kinds[: len(kinds) - OPS[name].params]
        literals = [abs(rng.uniform(0.1, 3)) for _ in range(OPS[name].params)]
        pool[result].append(call(name, *(rng.choice(pool[k]) for k in plain), *literals))
    return ScoreMod(pool["f"][-1], declared)


FLOATS = [0.0, -0.0, 0.125, -1e-05, 3.14159, 1e300, float("inf"), float("-inf"), float("nan"), 7.0]


def random_access(rng: random.Random) -> Aux:
    axes = rng.sample(AXES, rng.randrange(5))
    for _ in range(rng.randrange(2)):
        axes.insert(rng.randrange(len(axes) + 1), "-")
    kind = rng.choice("fib")
    if kind == "f" and rng.random() < 0.5:
        axes.insert(rng.randrange(len(axes) + 1), "t")
    return Aux(kind, tuple(axes))


@pytest.mark.parametrize("seed", range(200))
def test_text_and_program_are_the_same(seed: int) -> None:
    program = random_program(random.Random(seed))
    text = str(program)
    again = ScoreMod.parse(text)
    assert again == program and again.weight is program.weight
    assert str(again) == text
    assert pickle.loads(pickle.dumps(program)) == program
    assert "\n" not in text and "\n" not in program.formula


def test_the_notation() -> None:
    program = ScoreMod.parse(
        " a0 : b[b,-,q_idx,kv_idx]; t0 = mul( s,0.125 ) ; where(a0,silu(t0),0.0)"
    )
    assert program.aux == (Aux("b", ("b", "-", "q_idx", "kv_idx")),)
    assert program.aux[0].axes == frozenset(["b", "q_idx", "kv_idx"])
    assert program.weight is call("where", aux(0, "b"), call("silu", SCORE * 0.125), 0.0)
    assert str(program) == "a0:b[b,-,q_idx,kv_idx]; where(a0,silu(mul(s,0.125)),0.0)"
    assert program.formula == "where(a0, silu(s*0.125), 0.0)"
    assert str(ScoreMod.parse("a0:f[]; mul(s,a0)")) == "a0:f[]; mul(s,a0)"


def test_shared_terms_are_written_once() -> None:
    gate = call("sigmoid", SCORE)
    assert str(ScoreMod(gate * gate * SCORE)) == "t0=sigmoid(s); mul(mul(t0,t0),s)"


def test_deep_programs_are_cut_into_statements_that_parse() -> None:
    term: Expr = SCORE
    for step in range(500):
        term = call("tanh", term) + 0.5 * step
    program = ScoreMod(term)
    assert ScoreMod.parse(str(program)).weight is term


def test_doubling_chains_stay_short() -> None:
    """2^60 leaves when written out: text and formula are linear in the number of distinct terms."""
    term: Expr = SCORE
    for _ in range(60):
        term = term + term
    program = ScoreMod(term)
    assert len(str(program)) < 2000 and len(program.formula) < 4000
    assert ScoreMod.parse(str(program)).weight is term


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        (
            "div(silu(add(mul(s,0.125),float(q_idx))),float(i0))",
            "silu(s*0.125 + float(q_idx))/float(i0)",
        ),
        ("mul(add(s,1.0),sub(s,sub(1.0,s)))", "(s + 1.0)*(s - (1.0 - s))"),
        ("div(s,mul(s,div(s,2.0)))", "s/(s*(s/2.0))"),
        ("pow(relu(s),2.0)", "relu(s)**2.0"),
        ("pow(neg(s),3.0)", "(-s)**3.0"),
        ("neg(add(s,s))", "-(s + s)"),
        ("mul(s,-0.5)", "s*(-0.5)"),
        (
            "where(and(le(kv_idx,q_idx),not(eq(q_idx,0))),s,-inf)",
            "where((kv_idx <= q_idx) & not(q_idx == 0), s, -inf)",
        ),
        ("where(ge(mod(floordiv(q_idx,i0),3),1),s,0.0)", "where(q_idx//i0%3 >= 1, s, 0.0)"),
    ],
)
def test_formula(text: str, formula: str) -> None:
    assert ScoreMod.parse(text).formula == formula


def test_what_a_program_reads() -> None:
    assert ScoreMod.parse("s").num_scalars == 0
    assert ScoreMod.parse("div(s,float(i2))").num_scalars == 3
    gradients = ScoreMod.parse(
        "a0:f[q_idx,kv_idx]; a1:b[kv_idx]; where(a1,mul(silu(s),a0),0.0)"
    ).gradients
    assert gradients.score is not None
    assert gradients.aux[0] is call("where", aux(1, "b"), GRAD, 0.0) * call("silu", SCORE)
    assert gradients.aux[1] is None
    assert ScoreMod.parse("float(q_idx)").gradients.score is None
    assert terms_text([GRAD * SCORE, SCORE]) == "mul(g,s); s"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a term"),
        ("silu(s", "never closed"),
        ("silu(s))", "unmatched .\\)."),
        ("s s", "invalid syntax at 's'"),
        ("sinh(s)", "unknown operation 'sinh'"),
        ("silu()", "silu takes f>f, not nothing"),
        ("silu(s,s)", "silu takes f>f, not ff"),
        ("q_idx", "the weight must be a real number"),
        ("lt(s,0.0)", "the weight must be a real number"),
        ("q", "unknown name 'q'"),
        ("a0", "unknown name 'a0'"),
        ("a1:f[q_idx]; s", "expected a declaration of a0"),
        ("a0:f[q_idx]; a0:f[q_idx]; s", "expected a declaration of a1"),
        ("a0:x[n]; s", "found a0:x"),
        ("a0:f[q_idx,d]; s", "outside b, h, q_idx, kv_idx"),
        ("a0:f[q_idx,q_idx]; s", "reads an index twice"),
        ("a0:f[q_idx kv_idx]; s", "outside b, h, q_idx, kv_idx"),
        ("a0:b[q_idx]; mul(s,a0)", "not fb"),
        ("x=s; x", "no name for a statement"),
        ("t0=silu(t0); t0", "unknown name 't0'"),
        ("g", "g has no meaning in a forward program"),
        ("1.0.0", "invalid syntax at '.0'"),
        ("mul(s,0x10)", "not fi"),
        ("i1000", "unknown name 'i1000'"),
        ("mul(s,float(99999999999999999999))", "does not fit"),
        ("__import__('os').system('true')", "unexpected"),
        ("s.real", "unexpected 's.real'"),
        ("exec(s)", "unknown operation 'exec'"),
        ("s;", "'s' is no declaration and no statement"),
        ("(" * 50 + "s", "never closed"),
        ("neg(" * 100 + "s" + ")" * 100, "nested too deeply"),
        ("s" * (1 << 17), "at most 65536 characters"),
        ("1" * 5000, "does not fit|limit"),
        ("t0=s; ", "expected a term"),
        ("silu(*s)", "unexpected '\\*s'"),
        ("silu(x=s)", "unexpected 'silu\\(x=s\\)'"),
        ("mul(s,True)", "unexpected 'True'"),
        ("mul_(s,2.0)", "unknown operation 'mul_'"),
        ("where(not lt(s,0.0),s,0.0)", "at .not_ lt"),
        ("s if s else s", "unexpected"),
        ("neg(" * 500 + "s" + ")" * 500, "nested"),
        ("+".join("s" * 3000), "unexpected|cannot be parsed"),
        ("+".join("s" * 30000), "unexpected|cannot be parsed"),
        ("-" * 200 + "s", "unexpected"),
        ("-" * 60000 + "s", "parsed|nested|stack|unexpected"),
    ],
)
def test_what_is_not_a_program_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScoreModError, match=message):
        ScoreMod.parse(text)


@pytest.mark.parametrize("seed", range(100))
def test_damaged_text_never_breaks_the_reader(seed: int) -> None:
    """Cut, doubled or replaced characters: another program or ScoreModError, nothing else."""
    rng = random.Random(seed)
    text = str(random_program(rng))
    for _ in range(20):
        at, length = rng.randrange(len(text)), rng.randrange(1, 4)
        damaged = (
            text[:at]
            + rng.choice(["", text[at : at + length] * 2, "(", "]", "t0=", "9"])
            + text[at + length :]
        )
        try:
            program = ScoreMod.parse(damaged)
        except ScoreModError:
            continue
        assert ScoreMod.parse(str(program)) == program


def test_a_program_may_be_built_only_over_what_it_declares() -> None:
    with pytest.raises(ScoreModError, match="a0 is used but not declared with kind f"):
        ScoreMod(SCORE + aux(0))
    with pytest.raises(ScoreModError, match="not declared with kind f"):
        ScoreMod(SCORE + aux(0), (Aux("b", ()),))


def test_every_leaf_of_the_text_is_in_the_term() -> None:
    program = ScoreMod.parse(
        "a0:i[b]; where(lt(kv_idx,a0),add(s,float(sub(sub(q_idx,kv_idx),h))),float(b))"
    )
    leaves = {node.op for node in postorder([program.weight]) if not node.args}
    assert leaves == {"kv_idx", "aux", "s", "q_idx", "h", "b"}


TABLES = "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[t]; "


def test_a_table_is_looked_up() -> None:
    text = TABLES + "silu(add(add(s,lookup(a0,add(sub(q_idx,kv_idx),6))),lookup(a2,a1)))"
    program = ScoreMod.parse(text)
    assert str(program) == text
    assert program.aux[0].is_table and not program.aux[1].is_table
    assert set(program.places) == {0, 2} and program.places[2] is aux(1, "i")
    assert program.axes(0) == {"h", "q_idx", "kv_idx"}
    assert program.axes(2) == {"b", "q_idx", "kv_idx"}
    assert program.gradients.aux[0] is program.gradients.aux[2] is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a0:f[t]; add(s,a0)", "add takes ff>f or ii>i, not ft"),
        ("a0:f[h]; add(s,lookup(a0,h))", "lookup takes ti>f, not fi"),
        ("a0:f[t]; add(s,lookup(a0,s))", "lookup takes ti>f, not tf"),
        ("a0:f[t]; a0", "the weight must be a real number"),
        ("a0:i[t]; add(s,float(b))", "table i[t] is not of real numbers"),
        ("a0:f[t,t]; add(s,lookup(a0,b))", "access map f[t,t] reads an index twice"),
        ("a0:f[t]; lookup(a0,b)*s", "unexpected 'lookup(a0,b)*s'"),
        ("a0:f[t]; add(lookup(a0,b),lookup(a0,h))", "a0 is looked up at several places"),
    ],
)
def test_a_table_is_not_read_otherwise(text: str, reason: str) -> None:
    with pytest.raises(ScoreModError, match=re.escape(reason)):
        ScoreMod.parse(text)
