"""Masks by integer programs: every width, wraparound, unsigned arithmetic, truncating and flooring
division of negatives, shifts, truth values, and float positions that are no longer exact.
"""

import re
from collections.abc import Callable

from ..draft import Draft
from .table import fact, hostility

SIGNED = ("int8", "int16", "int32", "int64")
ENDS = {"uint8": 255, "int8": 127, "int16": 32767, "int32": 2**31 - 1, "int64": 2**63 - 1}


def _positions(draft: Draft, dtype: str, low: int, high: int) -> tuple[str, str]:
    """Names of an [n, 1] and an [m] tensor of integers: counted, or given."""
    names = draft.fresh("rows"), draft.fresh("columns")
    start = f" + {low}" if low else ""
    given = draft.coin()
    for name, letter in zip(names, "nm"):
        if given:
            draft.operand(name, letter, kind=dtype, values=f"ints {low} {high}")
        else:
            draft.emit(f"{name} = (torch.arange({letter}){start}).to(torch.{dtype})")
    return f"{names[0]}[:, None]", names[1]


def by(name: str, *makers: Callable[[Draft], str], exact: bool = False, **facts: object) -> None:
    """Hostilities that bring the mask."""
    for make in makers:
        fact(f"integers: {name}", exact=exact, mask=make, **facts)


def _compared(draft: Draft, text: str) -> str:
    draft.emit(f"mask = {text}")
    return "mask"


def _tree(draft: Draft, leaves: tuple[str, ...], operations: tuple[str, ...], depth: int) -> str:
    """A random expression of integer operations over the leaves."""
    if depth == 0:
        return draft.random.choice(leaves)
    text = draft.random.choice(operations)
    return text.format(
        x=_tree(draft, leaves, operations, depth - 1),
        y=draft.random.choice(leaves),
        c=draft.random.choice((1, 2, 3, 5, 7)),
    )


HARMLESS = (
    "({x} - {y})",
    "({x} + {y})",
    "({x} + {c})",
    "({x} - {c})",
    "({x} * {c})",
    "-{x}",
    "({x}).abs()",
    "torch.maximum({x}, {y})",
    "torch.minimum({x}, {y})",
)
COMPARED = ("{x} >= {c}", "{x} < {c}", "{x} > {y}", "{x} <= {y}", "{x} != {c}", "{x} == {y}")


def _comparison(draft: Draft, tree: str, leaves: tuple[str, ...], *constants: int) -> str:
    text = draft.random.choice(COMPARED)
    other = draft.random.choice(leaves)
    return text.format(x=tree, y=other, c=draft.random.choice(constants or (0, 1, 2, 3)))


def _harmless(draft: Draft) -> str:
    leaves = _positions(draft, "int64", 0, 9)
    tree = _tree(draft, leaves, HARMLESS, draft.pick(1, 2, 3))
    return _compared(
        draft, _comparison(draft, f"({tree} + 0 * {leaves[0]} + 0 * {leaves[1]})", leaves)
    )


by("small", _harmless, exact=True)


def _wrapping(dtype: str) -> Callable[[Draft], str]:
    def make(draft: Draft) -> str:
        end = ENDS[dtype]
        low, high = draft.pick((0, 9), (end - 9, end), (end // 3, end // 2), (1, 40))
        if dtype in SIGNED and draft.coin(0.3):
            low, high = -high, -low
        leaves = _positions(draft, dtype, low, min(high, end))
        operations = (
            *HARMLESS,
            "({x} * {y})",
            "({x} * {x})",
            "({x}).square()",
            "({x} << {c})",
            "~({x})",
        )
        tree = _tree(draft, leaves, operations, draft.pick(1, 2, 3))
        if draft.coin(0.3):
            tree = f"({tree}).to(torch.{draft.pick('int64', 'int32', 'uint8', 'int16')})"
        return _compared(draft, _comparison(draft, tree, leaves, 0, 1, 3, end // 2, 100))

    return make


by("wraparound", *map(_wrapping, ENDS))


def _narrowed(draft: Draft) -> str:
    """Time stamps in milliseconds, hashes, products: too large for the dtype that they go to."""
    leaves = _positions(
        draft, "int64", *draft.pick((0, 90), (0, 2**33), (2**31 - 4, 2**31 + 4), (100, 400))
    )
    factor = draft.pick("", " * 86_400_000", " * 86_400_000", " * 1000", " << 20", " * 97")
    cast = draft.pick(
        "int()",
        "int()",
        "int()",
        "to(torch.int32)",
        "to(torch.int32)",
        "to(torch.int8)",
        "short()",
        "byte()",
        "char()",
        "to(torch.int16)",
        "type(torch.uint8)",
        "to(dtype=torch.int32)",
    )
    form = draft.pick("((x - y){f}).{c}", "((x){f}).{c} - y", "(x{f}).{c} - (y{f}).{c}")
    text = form.replace("{f}", factor).replace("{c}", cast)
    text = re.sub(r"\bx\b", leaves[0], text)
    text = re.sub(r"\by\b", leaves[1], text)
    return _compared(draft, f"({text}) >= {draft.pick(0, 1, 64)}")


def _narrow_arange(draft: Draft) -> str:
    kind, step = draft.pick(("uint8", "50"), ("int8", "40"), ("int16", "9000"), ("uint8", "1"))
    form = draft.pick(
        "torch.arange(0, n * {t}, {t}, dtype=torch.{k})", "torch.arange(n, dtype=torch.{k}) * {t}"
    )
    other = form.replace("(n,", "(m,").replace("n * {t},", "m * {t},")
    draft.emit(f"i = {form.format(t=step, k=kind)}", f"j = {other.format(t=step, k=kind)}")
    if step == "1":
        draft.emit("i = i - 3", "j = j - 2")
    return _compared(
        draft, draft.pick("i[:, None] >= j", "i[:, None] - j < 5", "(i[:, None] + j) > 100")
    )


by("narrow dtypes", _narrowed, _narrow_arange)


DIVISIONS = (
    "({x} // {c})",
    "torch.div({x}, {c}, rounding_mode='trunc')",
    "torch.div({x}, {c}, rounding_mode='floor')",
    "torch.floor_divide({x}, {c})",
    "({x} % {c})",
    "torch.remainder({x}, {c})",
    "torch.fmod({x}, {c})",
    "({x} // -{c})",
    "({x} % -{c})",
    "torch.div({x}, -{c}, rounding_mode='trunc')",
    "torch.fmod({x}, -{c})",
    "({x}.remainder({c}))",
    "torch.true_divide({x}, {c}).int()",
    "({x} / {c}).floor().long()",
    "({x} / {c}).trunc().long()",
    "({x} / {c}).long()",
)


def _divided(draft: Draft) -> str:
    leaves = _positions(draft, draft.random.choice(SIGNED), -9, 9)
    inner = _tree(draft, leaves, ("({x} - {y})", "({x} - {c})", "-({x})"), 1)
    tree = _tree(draft, (inner,), DIVISIONS, draft.pick(1, 2))
    return _compared(draft, _comparison(draft, tree, leaves, -2, -1, 0, 1))


by("division of negatives", _divided)


def _shifted(draft: Draft) -> str:
    dtype = draft.pick("uint8", "int8", "int32", "int64")
    low = 0 if dtype == "uint8" else -9
    leaves = _positions(draft, dtype, low, 9)
    operations = (
        "({x} << {c})",
        "({x} >> {c})",
        "torch.bitwise_left_shift({x}, {c})",
        "torch.bitwise_right_shift({x}, {c})",
        "({x} >> {y}.abs().clamp(0, 3))",
        "(1 << {x}.clamp(0, 6))",
        "(({x} >> {c}) & 1)",
    )
    tree = _tree(draft, leaves, operations, draft.pick(1, 2))
    return _compared(draft, _comparison(draft, tree, leaves, -1, 0, 1, 4))


def _bits(draft: Draft) -> str:
    leaves = _positions(draft, draft.pick("uint8", "int16", "int64"), 0, 15)
    operations = (
        "({x} & {y})",
        "({x} | {y})",
        "({x} ^ {y})",
        "({x} & {c})",
        "(~{x})",
        "({x} ^ -1)",
    )
    tree = _tree(draft, leaves, operations, draft.pick(1, 2, 3))
    if draft.coin(0.3):
        return _compared(draft, f"({tree} + 0 * {leaves[0]} + 0 * {leaves[1]}).bool()")
    return _compared(draft, _comparison(draft, tree, leaves, 0, 1, 4, 8))


by("shifts and bits", _shifted, _bits)


TRUTH = (
    "({x} & {y})",
    "({x} | {y})",
    "({x} ^ {y})",
    "~{x}",
    "({x} * {y})",
    "({x} + {y})",
    "torch.logical_and({x}, {y})",
    "torch.logical_xor({x}, {y})",
    "({x} == {y})",
    "({x} != {y})",
    "({x} >= {y})",
    "torch.maximum({x}, {y})",
    "({x} * 2 + {y} > 1)",
    "(1 - {x}.int()).bool()",
    "({x}.to(torch.uint8) - 1 > {y})",
    "({x} + {y} + {x} == 2)",
    "({x}.float() - 0.5 > 0)",
    "({x} / 2 > {y})",
    "torch.where({x}, {y}, True)",
    "({x} < {y})",
    "{x}.masked_fill({y}, False)",
    "torch.bitwise_not({x})",
    "({x} | 0).bool()",
)


def _truths(draft: Draft) -> str:
    one = draft.operand("keep", "n m", kind="bool", values="bool")
    other = draft.operand("valid", "m", kind="bool", values="bool")
    return _compared(draft, _tree(draft, (one, other, one), TRUTH, draft.pick(1, 2, 3)))


by("truth values", _truths)


def _inexact(draft: Draft) -> str:
    """Positions in floating point where neighbours are one number: 2^24 in fp32, 2^8 in bf16."""
    kind, start = draft.pick(
        ("float32", 2**24 - 3),
        ("float32", 2**25),
        ("bfloat16", 254),
        ("bfloat16", 2**9),
        ("float16", 2**11 - 2),
        ("float64", 2**53 - 2),
    )
    draft.emit(
        f"i = (torch.arange(n) + {start}).to(torch.{kind})",
        f"j = (torch.arange(m) + {start}).to(torch.{kind})",
    )
    return _compared(
        draft,
        draft.pick(
            "i[:, None] >= j",
            "i[:, None] - j >= 1",
            "(i[:, None] - j).abs() < 2",
            "i[:, None] + 1 > j",
            "i[:, None].long() >= j",
            "i[:, None] == j",
            "(i[:, None] - j).int() > 0",
        ),
    )


by("inexact floats", _inexact, literal=True)


def _converted(draft: Draft) -> str:
    """Floats that become integers, NaN aside: truncation towards zero, values that are negative."""
    times = draft.operand("times", "b m", kind="float32")
    cast = draft.pick("int()", "long()", "to(torch.int8)", "to(torch.int16)", "trunc()", "floor()",
                      "round()", "ceil()", "bool()")  # fmt: skip
    draft.emit(f"j = ({times} * {draft.pick(1, 3, 10)}).{cast}")
    axes = ", ".join(":" if dim in ("b", "m") else "None" for dim in draft.dims)
    return _compared(draft, f"j[{axes}] {draft.pick('>= 0', '> 0', '!= 0', '<= 1')}")


def _tabled(draft: Draft) -> str:
    """A mask gathered from a table by differences of positions."""
    draft.emit(
        "away = torch.arange(n)[:, None] - torch.arange(m)",
        f"table = torch.arange(n + m) % {draft.pick(2, 3)} == 0",
    )
    return _compared(
        draft,
        draft.pick(
            "table[away + m - 1]",
            "table[away]",
            "table[away.abs()]",
            "table.gather(0, (away + m - 1).flatten()).view(n, m)",
        ),
    )


by("converted or gathered", _converted, _tabled)


@hostility("integers: on the scores", exact=True, at="middle")
def _(draft: Draft) -> None:
    """Integers that act on the scores themselves."""
    dtype = draft.pick("int64", "int32", "uint8", "int8")
    counts = draft.operand("counts", "m", kind=dtype, values="ints 1 7")
    text = draft.pick("{s} * {c}", "{s} / {c}", "{s} + {c}", "{s} - {c}", "{s} * (1 - {c})",
                      "{s} * {c} ** -1.0", "{s} / ({c} + 1)", "{s} - 0.1 * {c}")  # fmt: skip
    draft.assign("middle", text.format(s=draft.s, c=counts))
