"""ScoreMod: a score program as one canonical line of text.

    a0:b[b,-,q_idx,kv_idx]; t0=mul(s,0.125); where(a0,silu(t0),0.0)

A declaration gives each aux operand a kind (f, i or b: float, integer, bool) and an access map. The
map has an entry for each dim of the operand: the score index that reads the dim, or "-" for a dim
of size 1. "q" and "k" are rows of jagged queries and keys; they replace b together with q_idx or
kv_idx. The last expression is the weight P[b,h,q_idx,kv_idx] that multiplies V.

An operand with the entry "t" is a table. It is read by `lookup(table, place)` only, at one place in
a program. The place, an integer term, is the index into this dim:

    a0:f[h,t]; silu(add(s,lookup(a0,add(sub(q_idx,kv_idx),i0))))

A term that is named r is summed over the keys: the row sums are one more output of the op.

    t0=relu(s); r=abs(t0); t0

The text is an argument of the op, so every cache sees it. It is never executed: its terms are
expressions of Python, of which names, numbers and calls of operations are read.

    program = { declaration ";" } { name "=" term ";" } term
    declaration = "a" digits ":" ("f"|"i"|"b") "[" [ entry { "," entry } ] "]"
    term = name | literal | name "(" term { "," term } ")"

Old texts say n for q_idx and m for kv_idx. They are read with this meaning.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .expr import (
    AXES,
    GRAD,
    INDEX,
    INSTRUCTIONS,
    OPS,
    SCORE,
    Expr,
    aux,
    call,
    const,
    differentiate,
    postorder,
    scalar,
)

# Entries for rows of a jagged side, and the position that each contains.
JAGGED = {"q": "q_idx", "k": "kv_idx"}
# The score indices along which an entry of an access map varies.
_VARIES: dict[str, tuple[str, ...]] = {
    **{axis: (axis,) for axis in AXES},
    **{rows: ("b", position) for rows, position in JAGGED.items()},
    "-": (),
    "t": (),
}
_BEFORE = {"n": "q_idx", "m": "kv_idx"}  # the names of indices in old texts
_MAX_TEXT = 1 << 16
_MAX_DEPTH = 64
_KEYWORDS = {"and_": "and", "or_": "or", "not_": "not"}  # of Python, and operations here
_STATEMENT = re.compile(r"\s*(\w+)\s*(?::\s*(\w+)\s*\[(.*)\]|=(.*))\s*", re.DOTALL)
_NAMES: dict[str, Expr] = {
    "s": SCORE,
    "g": GRAD,
    **INDEX,
    **{old: INDEX[axis] for old, axis in _BEFORE.items()},
    "true": const(True),
    "false": const(False),
    "inf": const(math.inf),
    "nan": const(math.nan),
}


class ScoreModError(ValueError):
    """The text is not a score program. The message says where and why."""


@dataclass(frozen=True)
class Aux:
    """How an aux operand is read. kind: "f", "i" or "b". access: An entry for each dim."""

    kind: str
    access: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}[{','.join(self.access)}]"

    @property
    def axes(self) -> frozenset[str]:
        """The score indices of `AXES` along which the operand varies. Those of a table's place do
        not count: see `ScoreMod.axes`.
        """
        return frozenset(axis for entry in self.access for axis in _VARIES.get(entry, ()))

    @property
    def is_table(self) -> bool:
        return "t" in self.access

    @property
    def leaf_kind(self) -> str:
        """The kind of the term that reads it."""
        return "t" if self.is_table else self.kind


@dataclass(frozen=True)
class Gradients:
    """The gradients of the score and of each aux operand, as terms. None stands for zero.

    They are terms in s, g (the gradient of P) and the aux operands. That of a row sum is 1.
    """

    score: Expr | None
    aux: tuple[Expr | None, ...]


@dataclass(frozen=True)
class ScoreMod:
    """A score program.

    weight: A term over the score, indices, scalars and aux operands. aux: The declarations of the
    aux operands. summed: A term whose sum over the keys is asked for too.
    """

    weight: Expr
    aux: tuple[Aux, ...] = ()
    summed: Expr | None = None

    def __post_init__(self) -> None:
        if any(root.kind != "f" for root in self.roots):
            raise ScoreModError("the weight must be a real number")
        for spec in self.aux:
            if not set(spec.access) <= set(_VARIES):
                raise ScoreModError(f"access map {spec} has an entry outside {', '.join(_VARIES)}")
            if (
                len(spec.axes) != sum(len(_VARIES[entry]) for entry in spec.access)
                or spec.access.count("t") > 1
            ):
                raise ScoreModError(f"access map {spec} reads an index twice")
        for node in postorder(self.roots):
            if node.op == "aux" and (
                not 0 <= node.value < len(self.aux) or self.aux[node.value].leaf_kind != node.kind
            ):
                raise ScoreModError(f"a{node.value} is used but not declared with kind {node.kind}")
            if node.op in INSTRUCTIONS:
                raise ScoreModError(f"{node.op} is an instruction of kernels")
            if node is GRAD:
                raise ScoreModError("g has no meaning in a forward program")
        self._check_tables()
        self._check_seeds()

    def _check_tables(self) -> None:
        for spec in self.aux:
            if spec.is_table and spec.kind != "f":
                raise ScoreModError(f"table {spec} is not of real numbers")
        tables = Counter(x.args[0] for x in postorder(self.roots) if x.op == "lookup")
        for table, count in tables.items():
            if table.op != "aux" or count > 1:
                raise ScoreModError(f"{leaf_text(table)} is looked up at several places")

    def _check_seeds(self) -> None:
        for draw in (x for x in postorder(self.roots) if x.op == "random16"):
            seed, *index = draw.args
            if index != [*INDEX.values()]:
                raise ScoreModError(f"random16 is of the score at {', '.join(INDEX)}")
            if seed.op != "aux" or self.aux[seed.value].access:
                raise ScoreModError(f"{leaf_text(seed)} is no operand i[], as a seed is")

    @functools.cached_property
    def seeds(self) -> frozenset[int]:
        """The numbers of the operands that are seeds of random numbers."""
        draws = (x for x in postorder(self.roots) if x.op == "random16")
        return frozenset(x.args[0].value for x in draws)

    @property
    def roots(self) -> tuple[Expr, ...]:
        """The terms that a forward sums."""
        return (self.weight,) if self.summed is None else (self.weight, self.summed)

    def with_row_gradient(self, access: tuple[str, ...]) -> ScoreMod:
        """The program of a backward: the gradient of the row sums is one more aux operand."""
        assert self.summed is not None
        grad = aux(len(self.aux), "f")
        return ScoreMod(self.weight, (*self.aux, Aux("f", access)), call("mul", grad, self.summed))

    @functools.cached_property
    def places(self) -> Mapping[int, Expr]:
        """The term by which each table is looked up, by the table's number."""
        lookups = (x for x in postorder(self.roots) if x.op == "lookup")
        return {x.args[0].value: x.args[1] for x in lookups}

    def axes(self, number: int) -> frozenset[str]:
        """The score indices along which what is read of an operand varies."""
        return self.aux[number].axes | self.place_axes(number)

    def place_axes(self, number: int) -> frozenset[str]:
        """Those along which the place varies by which a table is looked up."""
        return self.axes_of([self.places[number]] if number in self.places else [])

    def axes_of(self, terms: Sequence[Expr]) -> frozenset[str]:
        """Those along which terms vary, or conditions on tiles (`tile_classes`)."""
        axes: frozenset[str] = frozenset()
        for leaf in postorder(terms):
            own = self.aux[leaf.value].axes if leaf.op.startswith("aux") else {leaf.op} & set(AXES)
            axes |= set(AXES) if leaf.op == "s" else own
        return axes

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        declarations = [f"a{number}:{spec}" for number, spec in enumerate(self.aux)]
        *statements, last = terms_text(self.roots[::-1]).split("; ")
        if self.summed is not None:
            statements[-1] = f"r={statements[-1]}"
        return "; ".join([*declarations, *statements, last])

    @functools.cached_property
    def num_scalars(self) -> int:
        used = (x.value for x in postorder(self.roots) if x.op == "scalar")
        return max(used, default=-1) + 1

    @functools.cached_property
    def gradients(self) -> Gradients:
        """d/ds and d/da_i of the weight, times g, and of the term that is summed."""
        leaves = [SCORE, *(aux(i, a.leaf_kind) for i, a in enumerate(self.aux))]
        terms = differentiate(self.weight, leaves)
        if self.summed is not None:
            of_sums = differentiate(self.summed, leaves, const(1.0))
            terms = [
                x + y if x is not None and y is not None else y if x is None else x
                for x, y in zip(terms, of_sums, strict=True)
            ]
        score, *others = terms
        return Gradients(score, tuple(others))

    def summed_terms(self, needs: Sequence[bool]) -> dict[str, Expr]:
        """The terms that the wanted gradients of (query, key, value, *aux) sum: P, dS, and others.

        Their names are "p", "ds", and "g0" and so on.
        """
        own = {f"g{number}": term for number, term in enumerate(self.gradients.aux)}
        every = {"p": self.weight, "ds": self.gradients.score, **own}
        wanted = needs[2], needs[0] or needs[1], *needs[3:]
        pairs = zip(every.items(), wanted, strict=True)
        return {name: term for (name, term), want in pairs if want and term is not None}

    @property
    def formula(self) -> str:
        """The weight in ordinary notation, for people."""
        return formula(self.weight)

    @staticmethod
    def parse(text: str) -> ScoreMod:
        """Read a program. Raises ScoreModError with the place of the first fault."""
        return _parse(text)


def terms_text(roots: Sequence[Expr]) -> str:
    """Statements for terms used more than once or nested deeply, then the roots; by "; "."""
    uses = Counter(roots)
    order = list(postorder(roots))
    for node in order:
        uses.update(node.args)
    names: dict[Expr, str] = {}
    texts: dict[Expr, str] = {}
    depths: dict[Expr, int] = {}
    statements: list[str] = []
    for node in order:
        args = ",".join(names.get(a, texts[a]) for a in node.args)
        texts[node] = f"{node.op}({args})" if args else leaf_text(node)
        depths[node] = 1 + max((depths[a] for a in node.args), default=0)
        if node.args and (uses[node] > 1 or depths[node] >= _MAX_DEPTH // 2):
            names[node] = f"t{len(names)}"
            statements.append(f"{names[node]}={texts[node]}")
            depths[node] = 1
    return "; ".join([*statements, *(names.get(r, texts[r]) for r in roots)])


def leaf_text(node: Expr) -> str:
    if node.op == "aux":
        return f"a{node.value}"
    if node.op == "scalar":
        return f"i{node.value}"
    if node.op == "const":
        return repr(node.value).lower() if isinstance(node.value, bool) else repr(node.value)
    return node.op


_MAX_LEAVES = 200  # of a formula that is written out; sharing can make the tree exponentially large


def formula(root: Expr) -> str:
    """Infix notation of a term, e.g. `silu(s*0.125 + a0)/i0`; a large one stays in statements."""
    leaves: dict[Expr, int] = {}
    for node in postorder([root]):
        leaves[node] = sum(leaves[a] for a in node.args) or 1
    return _infix(root) if leaves[root] <= _MAX_LEAVES else terms_text([root])


def _infix(root: Expr) -> str:
    texts: dict[Expr, tuple[str, int]] = {}

    def enclosed(node: Expr, above: int) -> str:
        text, level = texts[node]
        return f"({text})" if level < above else text

    for node in postorder([root]):
        if not node.args:
            literal = leaf_text(node)
            texts[node] = (literal, 2 if literal.startswith("-") else 9)
        elif (infix := OPS[node.op].infix) is not None:
            sign, level = infix
            gap = "" if level == 3 else " "
            place = max(level, 2)  # comparisons and logic do not nest without parentheses
            left, right = enclosed(node.args[0], place), enclosed(node.args[1], place + (level > 1))
            texts[node] = (f"{left}{gap}{sign}{gap}{right}", level)
        elif node.op == "pow":
            texts[node] = (f"{enclosed(node.args[0], 5)}**{leaf_text(node.args[1])}", 4)
        elif node.op == "neg":
            texts[node] = (f"-{enclosed(node.args[0], 3)}", 2)
        else:
            texts[node] = (f"{node.op}({', '.join(texts[a][0] for a in node.args)})", 9)
    return texts[root][0]


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> ScoreMod:
    if len(text) > _MAX_TEXT:
        raise ScoreModError(f"a score program has at most {_MAX_TEXT} characters")
    names = dict(_NAMES)
    declared: list[Aux] = []
    summed: Expr | None = None
    *statements, weight = text.split(";")
    for statement in statements:
        match = _STATEMENT.fullmatch(statement)
        if match is None:
            raise ScoreModError(f"{statement.strip()!r} is no declaration and no statement")
        name, kind, access, term = match.groups()
        if term is None:
            if name != f"a{len(declared)}" or kind not in ("f", "i", "b"):
                wanted = f"a declaration of a{len(declared)}"
                raise ScoreModError(f"expected {wanted}, found {name}:{kind}")
            entries = [entry.strip() for entry in access.split(",")] if access.strip() else []
            spec = Aux(kind, tuple(_BEFORE.get(entry, entry) for entry in entries))
            names[name] = aux(len(declared), spec.leaf_kind)
            declared.append(spec)
        elif re.fullmatch(r"t\d+", name):
            names[name] = _parse_term(term, names)
        elif name == "r" and summed is None:
            summed = _parse_term(term, names)
        else:
            raise ScoreModError(f"{name!r} is no name for a statement; use t0, t1, ...")
    return ScoreMod(_parse_term(weight, names), tuple(declared), summed)


def _parse_term(text: str, names: Mapping[str, Expr]) -> Expr:
    text = re.sub(r"\b(and|or|not)\b", r"\1_", " ".join(text.split()))
    if not text:
        raise ScoreModError("expected a term")
    try:
        root = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        place = text[max((error.offset or 1) - 1, 0) :][:10]
        raise ScoreModError(f"{error.msg} at {place!r}") from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise ScoreModError(f"{text[:20]!r} cannot be parsed: {error}") from None
    return _term(root, text, names, 0)


def _term(node: ast.expr, text: str, names: Mapping[str, Expr], depth: int) -> Expr:
    if depth > _MAX_DEPTH:
        raise ScoreModError("a term is nested too deeply")
    match node:
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            return _literal(value)
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return _literal(-value)
        case ast.UnaryOp(ast.USub(), ast.Name("inf")):
            return const(-math.inf)
        case ast.Name(name) if name in names:
            return names[name]
        case ast.Name(name) if re.fullmatch(r"i\d{1,3}", name):
            return scalar(int(name[1:]))
        case ast.Name(name):
            raise ScoreModError(f"unknown name {name!r}")
        case ast.Call(ast.Name(name), operands, []):
            args = [_term(x, text, names, depth + 1) for x in operands]
            try:
                return call(_KEYWORDS.get(name, name), *args)
            except ValueError as error:
                raise ScoreModError(str(error)) from None
    raise ScoreModError(f"unexpected {text[node.col_offset : node.end_col_offset][:20]!r}")


def _literal(value: float) -> Expr:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ScoreModError(f"the integer {value} does not fit 64 bits")
    return const(value)
