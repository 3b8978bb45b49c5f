"""Give index variables their roles (batch, heads, rows, keys, channels), and arrange operands.

`program_of` then says the weight of a reading in terms of batch, head, row and key.

The role of an atom follows from the tensors that have it: the operands of the first product, the
value, and the output.

    keys       The second product sums over them. Exactly one operand of the first product has them.
    rows       Only the other operand and the output have them. If there are several, the longest is
               the rows, and the others are heads.
    channels   The value and the output have them, and the weights do not.
    shared     All other atoms. They are batch or heads. An operand that lacks one is shared along
               it.

Shared atoms are divided into batch and heads so that no aux operand has to be expanded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..._compat import shapes
from ...program.canonical import canonical
from ...program.expr import INDEX, SCORE, Expr, aux, element_kind, postorder, with_leaves
from ...program.score_mod import Aux, ScoreMod
from ...rejection import Code
from ..host import facts, places
from ..host.sizes import Size
from ..result import Draw, Refused
from .frame import CUTS_ACROSS, Atom, Digits, Index, atoms, flat
from .reading import Operand, Reading

# Costs of a grouping. The order of batch and heads costs 1 a step.
_REFUSE, _COPY, _EXPAND = 10_000, 20, 5


@dataclass(frozen=True)
class Layout:
    """The atoms of each axis, and the operands of the products in their roles.

    query_tokens, key_tokens: The atom that runs over jagged rows, on a jagged side.
    """

    query: Operand
    key: Operand
    value: Operand
    batch: Digits
    heads: Digits
    rows: Digits
    keys: Digits
    inner: Digits
    channels: Digits
    query_tokens: Digits | None = None
    key_tokens: Digits | None = None

    @property
    def axes(self) -> dict[str, Digits]:
        """The digits of each entry of an access map."""
        axes = {"b": self.batch, "h": self.heads, "q_idx": self.rows, "kv_idx": self.keys}
        tokens = {"q": self.query_tokens, "k": self.key_tokens}
        return axes | {axis: digits for axis, digits in tokens.items() if digits is not None}


def layout_of(reading: Reading, batch: Digits | None = None, rows: Digits | None = None) -> Layout:
    """Give every atom its role; `batch` and `rows`, where given, are known already.

    Raises Refused where the region is not the operator.
    """
    keys, weights = set(reading.keys), atoms(reading.weights)
    query, key = roles(reading)
    if not weights <= atoms(reading.score):
        raise Refused(Code.SCORES_BROADCAST, "an operand broadcasts the scores to more dimensions")
    value = atoms(reading.value.index)
    if not keys <= value:
        reason = "the second product sums over keys that its other operand does not have"
        raise Refused(Code.CONTRACTION, reason)
    channels = tuple(a for a in flat(reading.output) if a not in weights)
    if not set(channels) <= value:
        raise Refused(Code.LAYOUT, "the output is expanded within the second product")
    in_query, in_key = atoms(query.index), atoms(key.index)
    others = [a for a in flat(reading.weights) if a not in keys]
    if not set(others) <= set(flat(reading.output)):
        raise Refused(Code.CONTRACTION, "the second product sums over more than the keys")
    free = [a for a in others if a in in_query and a not in in_key and a not in value]
    length = lambda atom: shapes.size_hint(atom.size) or 1 << 60
    row = max(free, key=lambda a: ((a,) == rows, length(a), others.index(a)), default=None)
    layout = Layout(
        query=query,
        key=key,
        value=reading.value,
        batch=(),
        heads=(),
        rows=() if row is None else (row,),  # one seed or one query has no index of its own
        keys=reading.keys,
        inner=reading.inner,
        channels=channels,
    )
    _check_views(reading, layout)
    return _grouped(layout, reading, [a for a in others if a is not row], batch)


def roles(reading: Reading) -> tuple[Operand, Operand]:
    """(query, key): the key operand is the one that has what the second product sums over."""
    keys, inner = set(reading.keys), set(reading.inner)
    left, right = atoms(reading.left.index), atoms(reading.right.index)
    if not keys:
        raise Refused(Code.TOO_SMALL, "there is a single key", change="")
    if not inner <= left & right:
        raise Refused(Code.LAYOUT, "the first product sums over a dimension that an operand lacks")
    if keys <= left and keys <= right:
        reason = "the second product sums over a batch or head dimension of the scores"
        raise Refused(Code.CROSS_ELEMENT, reason)
    if keys <= right and not keys & left:
        return reading.left, reading.right
    if keys <= left and not keys & right:
        return reading.right, reading.left
    raise Refused(Code.CONTRACTION, "the second product sums over something else than the keys")


def _check_views(reading: Reading, layout: Layout) -> None:
    """A dimension of the scores, as the user has them, is some index variables of the output, whole
    and of one role. `s.view(b, n, h, m)` of scores [b, h, n, m] is legal, but cuts across them.
    """
    holders = [atoms(x.index) for x in (layout.query, layout.key, layout.value)]
    for digits in reading.scores:
        if len(digits) > 1 and not reading.space.is_whole(digits):
            raise Refused(Code.LAYOUT, CUTS_ACROSS)
        kinds = {tuple(atom in has for has in holders) for atom in digits}
        if len(kinds) > 1 and set(digits) & {*layout.rows, *layout.keys}:
            raise Refused(Code.LAYOUT, "a view mixes rows or keys with other dimensions")


def _grouped(
    layout: Layout, reading: Reading, shared: Sequence[Atom], known: Digits | None
) -> Layout:
    """The layout with the cheapest split of the `shared` atoms into batch and heads.

    Ties go to the order in which they come. known: What the batch has to be.
    """
    splits = [x for x in _splits(shared) if known is None or x[0] == known]
    if not splits:
        raise Refused(Code.JAGGED_LAYOUT, "the batch of the padding is not one of the scores")
    layouts = [replace(layout, batch=batch, heads=heads) for batch, heads in splits]
    costs = [_cost(x, reading) for x in layouts]
    if min(costs) >= _REFUSE:
        keyed = any(_is_partial(atoms(operand.index), reading.keys) for operand in reading.aux)
        axis = "the keys" if keyed else "the batch or heads"
        names = ", ".join(_partial_matrices(layout, reading, tuple(shared)))
        reason = f"a mask or bias would have to be expanded over a part of {axis}: {names}"
        raise Refused(Code.OPERAND_EXPANDS, reason, change=_WHOLE if keyed else None)
    return layouts[costs.index(min(costs))]


_WHOLE = (
    "add such operands up before they meet the scores, and reshape the sum to [B, H, N, N]: "
    "`(by_row[..., :, None] + by_column[..., None, :]).reshape(b, h, n, n)`"
)


def _partial_matrices(layout: Layout, reading: Reading, shared: Digits) -> Iterator[str]:
    # No one split into batch and heads suits all of these operands.
    for operand in reading.aux:
        has = atoms(operand.index)
        partial = _is_partial(has, shared) or _is_partial(has, layout.keys)
        if partial and _is_matrix(layout, has):
            shape = ", ".join(map(str, facts.tensors(operand.leaf)[0].shape))
            yield f"{places.describe(operand.leaf)} of shape [{shape}]"


def _is_matrix(layout: Layout, has: set[Atom]) -> bool:
    return not has.isdisjoint(layout.rows) and not has.isdisjoint(layout.keys)


def _splits(shared: Sequence[Atom]) -> Iterator[tuple[Digits, Digits]]:
    """Natural ones first: leading atoms are batch, trailing ones heads."""
    count = len(shared)
    for cut in range(min(count, 1), count + 1):
        yield tuple(shared[:cut]), tuple(shared[cut:])
    # With six dims there are 720 orders, and each is weighed against every operand.
    if count > 5:
        return
    for order in itertools.permutations(shared):
        for cut in range(count + 1):
            yield order[:cut], order[cut:]


def _cost(layout: Layout, reading: Reading) -> int:
    batch, heads = layout.batch, layout.heads
    # Ranks, not times: what is refused outweighs all copies, a copy four expansions, and one of
    # these any order. Of equal layouts the one in the model's order needs no transposition.
    neighbours = (*itertools.pairwise(batch), *itertools.pairwise(heads))
    cost = sum(a.number > b.number for a, b in neighbours)
    for operand in reading.aux:
        has = atoms(operand.index)
        partial = sum(_is_partial(has, axis) for axis in (batch, heads, layout.keys))
        cost += partial * (_REFUSE if _is_matrix(layout, has) else _COPY)
    in_query = atoms(layout.query.index)
    cost += _EXPAND * (_is_partial(in_query, batch) + (not in_query.issuperset(heads)))
    for operand in (layout.key, layout.value):
        has = atoms(operand.index)
        cost += _EXPAND * (_is_partial(has, batch) + (not _is_prefix(has, heads)))
    return cost


def _is_partial(has: set[Atom], axis: Digits) -> bool:
    return 0 < len(has & set(axis)) < len(axis)


def _is_prefix(has: set[Atom], axis: Digits) -> bool:
    count = len(has & set(axis))
    return set(axis[:count]) <= has


# Operands in the op's layout: what each dim of the arranged tensor is made of


def query_dims(layout: Layout) -> Index:
    if layout.query_tokens is not None:
        return (layout.query_tokens, layout.heads, layout.inner)
    return (_all_or_none(layout.query.index, layout.batch), layout.heads, layout.rows, layout.inner)


def shared_dims(layout: Layout, operand: Operand, last: Digits) -> Index:
    """Key or value: heads are shared by groups if the operand has the leading ones only."""
    has = atoms(operand.index)
    count = len(has & set(layout.heads))
    heads = layout.heads[:count] if _is_prefix(has, layout.heads) else layout.heads
    if layout.key_tokens is not None:
        return (layout.key_tokens, heads, last)
    return (_all_or_none(operand.index, layout.batch), heads, layout.keys, last)


def _all_or_none(index: Index, axis: Digits) -> Digits:
    return axis if atoms(index) & set(axis) else ()


def aux_dims(layout: Layout, operand: Operand) -> tuple[Index, tuple[str, ...]]:
    """The dims of an auxiliary operand as it is passed, and its access map.

    A dim that is one whole axis stays where it is, as do dims of size 1. Where dims are parts of an
    axis, these are brought together and those of size 1 go.
    """
    places = tuple(atom for atom in flat(operand.index) if atom.place)
    axes = layout.axes | ({"t": places} if places else {})
    simple = all(digits in ((), *axes.values()) for digits in operand.index)
    names = {atom: axis for axis, digits in axes.items() for atom in digits}
    dims: list[Digits] = []
    access: list[str] = []
    for digits in operand.index:
        if not digits and simple:
            dims.append(())
            access.append("-")
        for atom in (atom for atom in digits if not atom.is_fixed):
            axis = names.get(atom)
            if axis is None:
                raise Refused(Code.LAYOUT, "a mask or bias has a dimension that the scores lack")
            if axis not in access:
                dims.append(axes[axis])
                access.append(axis)
    return tuple(dims), tuple(access)


def _access(layout: Layout, operand: Operand) -> tuple[str, ...]:
    if not operand.is_seed:
        return aux_dims(layout, operand)[1]
    axes = (layout.batch, layout.heads, layout.rows, layout.keys)
    if not atoms(operand.index) >= {atom for digits in axes for atom in digits}:
        reason = f"{places.describe(operand.leaf)} draws one number for several scores"
        raise Refused(Code.DROPOUT, reason)
    return ()


def drawn(layout: Layout, operand: Operand) -> Draw:
    """How a dropout lies. operand: Its seed."""
    known: dict[Atom, tuple[str, Size]] = {}
    for axis in INDEX:
        digits = layout.axes[axis]
        known |= {x: (axis, sizes(digits[n + 1 :])) for n, x in enumerate(digits)}
    dims = [[(x.size, *known.get(x, ("-", 0))) for x in digits] for digits in operand.index]
    return Draw(operand.leaf.name, tuple(map(tuple, dims)))


def output_dims(layout: Layout) -> Index:
    if layout.query_tokens is not None:
        return (layout.query_tokens, layout.heads, layout.channels)
    return (layout.batch, layout.heads, layout.rows, layout.channels)


def sizes(digits: Digits) -> Size:
    return math.prod(atom.size for atom in digits)


def program_of(reading: Reading, layout: Layout) -> tuple[ScoreMod, list[Operand]]:
    """The program in terms of the score's indices, with its operands in the order of first use.

    Raises Refused where it depends on no score, or on other indices.
    """
    used = [node for node in postorder(reading.terms) if node.op == "aux"]
    numbers = {leaf.value: position for position, leaf in enumerate(used)}
    axes = {layout.axes[axis]: index for axis, index in INDEX.items() if layout.axes[axis]}

    def leaf(node: Expr) -> Expr:
        if node.op == "aux":
            return aux(numbers[node.value], node.kind)
        if node.op == "index":
            digits = reading.space.resolve(reading.positions[node.value])
            if digits not in axes:
                raise Refused(Code.LAYOUT, "a triangle is cut from merged dimensions of the scores")
            return axes[digits]
        return node

    terms = [canonical(with_leaves(term, leaf)) for term in reading.terms]
    operands = [reading.aux[number] for number in numbers]
    declared = [Aux(element_kind(x.kind), _access(layout, y)) for x, y in zip(used, operands)]
    if any(SCORE not in set(postorder([term])) for term in terms):
        raise Refused(Code.CONTRACTION, "the weights do not depend on the first product")
    weight, *summed = terms
    return ScoreMod(weight, tuple(declared), *summed), operands
