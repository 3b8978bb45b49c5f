"""How q, k and v come to a product: the layouts and views of real models.

operand   = direct | permuted | folded | sliced | split | projected, then { touch }
permuted  = a tensor stored in another order of its dims, permuted back
folded    = two neighbouring dims stored as one (`[b, n, h*d]`, `[b*h, n, d]`), unfolded by a view
sliced    = a slice of a larger tensor
split     = one half of a tensor whose last dim holds two operands
projected = `x @ w` or `F.linear(x, w)` with a 2-D weight, unfolded
touch     = silu, a scale, a vector added, clone, contiguous, cast to the same dtype
"""

from collections.abc import Callable, Sequence

from .draft import Draft

Dims = Sequence[str]


def shape_text(dims: Dims) -> str:
    """`("b", "n*h")` -> `"b, n*h"`, as it stands in a call."""
    return ", ".join(dims)


def permuted_text(draft: Draft, name: str, source: Dims, target: Dims) -> str:
    """`name` with dims `source` brought into the order `target`, in one of several spellings."""
    left: list[str | None] = list(source)
    order = []
    for dim in target:
        order.append(left.index(dim))
        left[order[-1]] = None  # a dim of size 1 may occur twice
    moved = [axis for axis, origin in enumerate(order) if axis != origin]
    rank = len(order)
    if not moved:
        return name
    if len(moved) == 2:
        first, second = moved
        if (first, second) == (rank - 2, rank - 1) and draft.coin(0.4):
            return f"{name}.mT"
        if draft.coin():
            first, second = first - rank, second - rank
        verb = draft.pick("transpose", "transpose", "swapaxes", "swapdims")
        return f"{name}.{verb}({first}, {second})"
    if draft.coin(0.2):
        return f"torch.permute({name}, {tuple(order)})"
    return f"{name}.permute({', '.join(map(str, order))})"


def direct(draft: Draft, stem: str, dims: Dims) -> str:
    return draft.operand(stem, dims)


def permuted(draft: Draft, stem: str, dims: Dims) -> str:
    stored = draft.shuffled(dims)
    return permuted_text(draft, draft.operand(stem, stored), stored, dims)


def folded(draft: Draft, stem: str, dims: Dims) -> str:
    """Store two dims as one, in an order in which they are neighbours."""
    pair = draft.pick(("h", "d"), ("h", "e"), ("b", "h"), ("g", "h"), ("b", "g"))
    if not set(pair) <= set(dims):
        return permuted(draft, stem, dims)
    others = [dim for dim in dims if dim not in pair]
    at = len(others) if pair[0] == "h" else 0
    if draft.coin(0.3):
        at = draft.random.randint(0, len(others))
    name = draft.operand(stem, [*others[:at], "*".join(pair), *others[at:]])
    unfolded = (*others[:at], *pair, *others[at:])
    spelling = draft.pick("view", "reshape", "unflatten")
    if spelling == "unflatten":
        text = f"{name}.unflatten({at}, ({shape_text(pair)}))"
    else:
        text = f"{name}.{spelling}({shape_text(unfolded)})"
    return permuted_text(draft, text, unfolded, dims)


def sliced(draft: Draft, stem: str, dims: Dims) -> str:
    axis = draft.random.randrange(len(dims))
    dim = dims[axis]
    if dim == "1":
        return direct(draft, stem, dims)
    name = draft.operand(stem, [*dims[:axis], f"{dim}+2", *dims[axis + 1 :]])
    if draft.coin(0.3):
        return f"{name}.narrow({axis}, 1, {dim})"
    cut = draft.pick(f":{dim}", f"2:2 + {dim}", "2:", "1:-1")
    return f"{name}[{', '.join([':'] * axis + [cut])}]"


def split(draft: Draft, stem: str, dims: Dims) -> str:
    name = draft.operand(stem, [*dims[:-1], f"2*{dims[-1]}"])
    half = draft.pick(0, 1)
    if draft.coin():
        return f"{name}.chunk(2, dim=-1)[{half}]"
    return f"torch.split({name}, {dims[-1]}, dim=-1)[{half}]"


def projected(draft: Draft, stem: str, dims: Dims) -> str:
    last = dims[-1]
    if last not in ("d", "e") or len(dims) < 3:
        return direct(draft, stem, dims)
    head = "h" if "h" in dims and draft.coin(0.7) else ""
    stored = [dim for dim in dims[:-1] if dim != head]
    width = f"h*{last}" if head else last
    x = draft.operand(f"{stem}x", [*stored, "6"])
    if draft.coin():
        text = f"{x} @ {draft.operand('weight', ('6', width))}"
    else:
        text = f"F.linear({x}, {draft.operand('weight', (width, '6'))})"
    if not head:
        return text
    unfolded = (*stored, "h", last)
    name = draft.let(stem, text)
    return permuted_text(draft, f"{name}.view({shape_text(unfolded)})", unfolded, dims)


RECIPES: tuple[Callable[[Draft, str, Dims], str], ...] = (
    direct, permuted, permuted, folded, folded, sliced, split, projected,
)  # fmt: skip
TOUCHES = (
    "F.silu({x})",
    "{x} * 0.5",
    "{x} / math.sqrt(d)",
    "d ** -0.25 * {x}",
    "{x} + {vector}",
    "{x} * {vector}",
    "{x}.clone()",
    "{x}.contiguous()",
    "{x}.to({x}.dtype)",
    "torch.tanh({x})",
)


def make_view(draft: Draft, stem: str, dims: Dims) -> None:
    """Bring `stem` ("q", "k" or "v") to dims `dims`, from new operands of the program."""
    facts = draft.settled.get("facts", {}).get(stem, {})
    given = bool(facts) or bool(draft.settled.get("plain_operands"))
    if given or (draft.hostile and draft.coin()):
        name = draft.operand(stem, dims, **facts)
        if facts.get("place", "argument") == "argument":
            setattr(draft, stem, name)
        return
    recipe = draft.random.choice(RECIPES)
    draft.note(f"operand {recipe.__name__}")
    _assign(draft, stem, recipe(draft, stem, dims))
    if draft.coin(0.35):
        touch = draft.random.choice(TOUCHES)
        vector = draft.operand("vector", dims[-1:]) if "{vector}" in touch else ""
        draft.note(f"touch {touch}")
        _assign(draft, stem, touch.format(x=stem, vector=vector))


def _assign(draft: Draft, stem: str, text: str) -> None:
    draft.locals.add(stem)
    if text != stem:
        draft.emit(f"{stem} = {text}")
    setattr(draft, stem, stem)
