"""How q, k and v come to a product: the layouts and views of real models.

operand   = permuted | folded | sliced | split | projected | direct, then { touch }
permuted  = a tensor stored in another order of its dims, permuted back
folded    = two neighbouring dims stored as one (`[b, n, h*d]`, `[b*h, n, d]`), unfolded by a view
sliced    = a slice of a larger tensor
split     = one half of a tensor whose last dim holds two operands
projected = `x @ w` or `F.linear(x, w)` with a 2-D weight, unfolded
touch     = silu, a scale, a vector added, clone, contiguous, cast to the same dtype
"""

from collections.abc import Callable, Sequence

from tests.fuzz.draft import Draft, permute_text, shape_text

Dims = Sequence[str]


def direct(draft: Draft, stem: str, dims: Dims) -> str:
    return draft.operand(stem, shape_text(dims).replace(",", ""))


def permuted(draft: Draft, stem: str, dims: Dims) -> str:
    stored = draft.shuffled(dims)
    return permute_text(draft, direct(draft, stem, stored), stored, dims)


def folded(draft: Draft, stem: str, dims: Dims) -> str:
    """Store two dims as one, in an order in which they are neighbours."""
    pair = draft.pick([("h", "d"), ("h", "e"), ("b", "h"), ("g", "h"), ("b", "g")])
    if not set(pair) <= set(dims):
        return permuted(draft, stem, dims)
    others = [dim for dim in dims if dim not in pair]
    at = len(others) if pair[0] == "h" else 0
    if draft.chance(0.3):
        at = draft.rng.randint(0, len(others))
    stored = [*others[:at], "*".join(pair), *others[at:]]
    name = direct(draft, stem, stored)
    unfolded = (*others[:at], *pair, *others[at:])
    spelling = draft.pick(["view", "reshape", "unflatten"])
    if spelling == "unflatten":
        text = f"{name}.unflatten({at}, ({shape_text(pair)}))"
    else:
        text = f"{name}.{spelling}({shape_text(unfolded)})"
    return permute_text(draft, text, unfolded, dims)


def sliced(draft: Draft, stem: str, dims: Dims) -> str:
    axis = draft.rng.randrange(len(dims))
    if dims[axis] == "1":
        return direct(draft, stem, dims)
    dim = dims[axis]
    name = direct(draft, stem, [*dims[:axis], f"{dim}+2", *dims[axis + 1 :]])
    if draft.chance(0.3):
        return f"{name}.narrow({axis}, 1, {dim})"
    cut = draft.pick([f":{dim}", f"2:2 + {dim}", "2:", "1:-1"])
    return f"{name}[{', '.join([':'] * axis + [cut])}]"


def split(draft: Draft, stem: str, dims: Dims) -> str:
    name = direct(draft, stem, [*dims[:-1], f"2*{dims[-1]}"])
    half = draft.pick([0, 1])
    if draft.chance(0.5):
        return f"{name}.chunk(2, dim=-1)[{half}]"
    return f"torch.split({name}, {dims[-1]}, dim=-1)[{half}]"


def projected(draft: Draft, stem: str, dims: Dims) -> str:
    last = dims[-1]
    if last not in ("d", "e") or len(dims) < 3:
        return direct(draft, stem, dims)
    head = "h" if "h" in dims and draft.chance(0.7) else ""
    stored = [dim for dim in dims[:-1] if dim != head]
    width = f"h*{last}" if head else last
    x = direct(draft, f"{stem}x", [*stored, "6"])
    if draft.chance(0.5):
        text = f"{x} @ {draft.operand('w', f'6 {width}')}"
    else:
        text = f"F.linear({x}, {draft.operand('w', f'{width} 6')})"
    name = draft.let(stem, text)
    if not head:
        return name
    unfolded = (*stored, "h", last)
    return permute_text(draft, f"{name}.view({shape_text(unfolded)})", unfolded, dims)


RECIPES: list[Callable[[Draft, str, Dims], str]] = [
    direct,
    permuted,
    permuted,
    folded,
    folded,
    sliced,
    split,
    projected,
]

TOUCHES: list[str] = [
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
]


def make_view(draft: Draft, stem: str, dims: Dims) -> str:
    """A variable of dims `dims`, made from new operands of the program."""
    recipe = draft.pick(RECIPES)
    draft.feature(f"operand:{recipe.__name__}")
    name = draft.let(stem, recipe(draft, stem, dims))
    if draft.chance(0.35):
        touch = draft.pick(TOUCHES)
        vector = draft.operand("vec", dims[-1]) if "{vector}" in touch else ""
        name = draft.let(stem, touch.format(x=name, vector=vector))
    return name
