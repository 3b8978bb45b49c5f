"""What stands between the two products: every step here is point-wise in the scores.

step       = scale | bias | activation | mask | reshape | nothing
scale      = score (·|/) (number | size | 0-dim, [1], [h,1,1], row or any broadcast tensor)
bias       = score (+|-) (number | broadcast tensor | distance built from positions)
table      = score (+|-) (an element of a learned table, by positions or integers)
mask       = score · tensor | masked_fill | where | tril, with a tensor of any broadcast form and
             kind, or one built from positions, lengths or windows
reshape    = a permutation or flattening of the dims of the scores
nothing    = clone, contiguous, dropout with p=0, same-dtype cast, a dead use, ...

A step has a stage: "middle" is before the activation, "weights" after it.
"""

from collections.abc import Callable

from .decoys import mixes
from .draft import Draft
from .spellings import ACTIVATIONS, EXOTIC, FURTHER, INCONSISTENT, MUTATING
from .views import permuted_text, shape_text

Step = Callable[[Draft, str], None]
# A template that begins so is a statement, which changes the scores in place.
IN_PLACE = "!"


def broadcast(draft: Draft, kind: str, keep: float = 0.6) -> str:
    """A new operand that broadcasts against the scores, in one of its usual spellings."""
    facts = KINDS[kind]
    remaining = [dim if draft.coin(keep) else "1" for dim in draft.dims]
    style = draft.pick("plain", "plain", "plain", "indexed", "permuted", "expanded")
    draft.note(f"operand of the program {style}")
    if style == "indexed":
        dims = [dim for dim in remaining if dim != "1"]
        index = ", ".join("None" if dim == "1" else ":" for dim in remaining)
        name = draft.operand("a", dims, **facts)
        return f"{name}[{index}]" if dims else name
    if style == "permuted":
        dims = draft.shuffled(remaining)
        return permuted_text(draft, draft.operand("a", dims, **facts), dims, remaining)
    while remaining and remaining[0] == "1" and draft.coin(0.6):
        remaining = remaining[1:]
    name = draft.operand("a", remaining, **facts)
    return f"{name}.expand({shape_text(draft.dims)})" if style == "expanded" else name


KINDS: dict[str, dict] = {
    "float": {},
    "const": {"grad": False},
    "positive": {"values": "positive"},
    "zero_one": {"values": "zero_one", "grad": False},
    "bool": {"kind": "bool", "values": "bool"},
    "int": {"kind": "int64", "values": "ints 0 1"},
    "count": {"kind": "int64", "values": "count"},
}


def _written(draft: Draft, stage: str, templates: tuple[str, ...], **fields: Callable) -> None:
    """One of the templates; each field that it has is drawn when it is known to be there."""
    known = [t for t in templates if not (draft.hostile and t.startswith(IN_PLACE))]
    template = draft.random.choice(known)
    draft.note(template)
    x = draft.subject(stage)
    drawn = {name: make() for name, make in fields.items() if f"{{{name}}}" in template}
    text = template.format(s=x, **drawn)
    if text.startswith(IN_PLACE):
        draft.emit(text[1:])
    else:
        draft.assign(stage, text)


def scale(draft: Draft, stage: str) -> None:
    _written(
        draft, stage, SCALES,
        size=lambda: draft.pick("n", "m", "max(n, m)", "d"),
        a=lambda: broadcast(draft, "float", draft.pick(0.0, 0.3, 0.6)),
        p=lambda: broadcast(draft, "positive", draft.pick(0.0, 0.3, 0.6)),
        c=lambda: broadcast(draft, "count", 0.3),
    )  # fmt: skip


SCALES = (
    "{s} * 0.25",
    "0.5 * {s}",
    "{s} / 3",
    "{s} / math.sqrt(d)",
    "{s} * d ** -0.5",
    "{s} / d ** 0.5",
    "torch.mul({s}, 0.3)",
    "{s}.mul(0.5)",
    "{s}.div(4.0)",
    "torch.div({s}, 3.0)",
    "{s} * 2 - 0.5",
    "-{s}",
    "{s} / {size}",
    "{s}.div({size})",
    "{s} * (1.0 / {size})",
    "{s} * {a}",
    "{a} * {s}",
    "{s} / {p}",
    "{s} / {c}",
    "!{s}.mul_(0.5)",
    "!{s} *= 0.5",
    "!{s} /= 4",
)


def bias(draft: Draft, stage: str) -> None:
    _written(
        draft, stage, BIASES,
        a=lambda: broadcast(draft, draft.pick("float", "float", "const"), 0.7),
        x=lambda: broadcast(draft, "float", 0.3),
        far=lambda: "({} - {}).abs().to({}.dtype)".format(*positions(draft), draft.subject(stage)),
    )  # fmt: skip


ADDCMUL = "torch.addcmul({s}, {a}, {x}, value=0.5)"
BIASES = (
    "{s} + {a}",
    "{s} + {a}",
    "{a} + {s}",
    "{s} - {a}",
    "{a} - {s}",
    "{s}.add({a})",
    "torch.add({s}, {a}, alpha=0.5)",
    "{s}.sub({a}, alpha=2)",
    "{s} + 0.1",
    "1.5 - {s}",
    "0.25 * ({s} + {a})",
    ADDCMUL,
    "{s} - 0.1 * {far}",
    "{s} + {x} * {far}",
    "!{s} += {a}",
    "!{s}.add_({a})",
    "!{s}.sub_({a}, alpha=0.5)",
)


def named_bias(draft: Draft, stage: str) -> None:
    """The bias that a hostility acts on: it knows its name."""
    name = draft.operand("bias", draft.settled.get("bias_dims") or mask_dims(draft))
    name = draft.settled.get("bias_name", name)
    text = draft.pick("{s} + {x}", "{s}.add({x})", "{x} + {s}")
    draft.assign(stage, text.format(s=draft.subject(stage), x=name))


def table(draft: Draft, stage: str) -> None:
    """A bias that is looked up in a learned table, at places made of positions or of integers."""
    if not {"n", "m"} <= set(draft.dims):
        return bias(draft, stage)
    rows, columns = positions(draft)
    template = draft.random.choice(PLACES)
    drawn = {name: broadcast(draft, "count", 0.5) for name in "xy" if f"{{{name}}}" in template}
    place = draft.let("place", template.format(r=rows, c=columns, **drawn))
    matrices = draft.dims[-3:] == ("h", "n", "m") and not drawn
    form, dims = draft.random.choice(LOOKUPS + (OF_HEADS if matrices else ()))
    from_end = "- 7" in template and not form.startswith("{t}[")
    place = f"({place} + 7)" if from_end else place
    draft.note(f"looked up by {form} at {template}")
    text = form.format(t=draft.operand("table", dims), p=place)
    draft.assign(
        stage,
        draft.pick("{s} + {t}", "{t} + {s}", "{s} - {t} * 0.5").format(
            s=draft.subject(stage), t=text
        ),
    )


# Places of a table of seven: by positions, logarithms, and integers of tokens.
PLACES = (
    "({r} - {c}).clamp(-3, 3) + 3",
    "(({r} - {c}).abs() // 2).clamp(max=6)",
    "({c} + 2 * {r}) % 7",
    "({c} - {r}) % 7 - 7",
    "torch.log(({r} - {c}).abs().double() + 1.0).long().clamp(0, 6)",
    "torch.bucketize(({r} - {c}).abs(), torch.tensor([1, 2, 3, 5, 8, 13]))",
    "(({r} - {c}).float().abs().sqrt() * 1.7).int().clamp(min=0, max=6)",
    "torch.where({r} >= {c}, ({r} - {c}).clamp(max=5), 6)",
    "({x} - {y}).clamp(0, 6)",
    "({x} - 1 + 0 * ({r} - {c}))",
    "({x} + {r} * {y}) % 7",
)
LOOKUPS = (
    ("{t}[{p}]", ("7",)),
    ("{t}[{p}]", ("7",)),
    ("torch.index_select({t}, 0, {p}.flatten()).view({p}.shape)", ("7",)),
    ("F.embedding({p}, {t}).squeeze(-1)", ("7", "1")),
    ("{t}.gather(0, {p}.long().reshape(-1)).view_as({p})", ("7",)),
    ("{t}[0, {p}]", ("2", "7")),
    ("{t}.double().exp().to({t}.dtype)[{p}]", ("7",)),
    ("({t}[{p}] * {t}[6 - {p} % 7])", ("7",)),
    ("F.pad({t}, (0, 3))[{p}]", ("7",)),
    ("torch.take({t}, {p}.long())", ("7",)),
)
OF_HEADS = (
    ("{t}[:, {p}.view(n, m)]", ("h", "7")),
    ("{t}[{p}.view(n, m)].permute(2, 0, 1)", ("7", "h")),
    ("F.embedding({p}.view(n, m), {t}).permute(2, 0, 1).contiguous()", ("7", "h")),
    ("{t}.t()[{p}.view(-1)].view(n, m, -1).permute(2, 0, 1)", ("h", "7")),
)


def mask_dims(draft: Draft) -> tuple[str, ...]:
    """The dims of a mask or bias that broadcasts to the scores."""
    full = draft.dims
    ones = ("1",) * (len(full) - 2)
    return draft.pick(full[-2:], ("1", full[-1]), full[-1:], full, (*ones, *full[-2:]))


def activation(draft: Draft, stage: str) -> None:
    if draft.fact("exotic", False):
        known: dict[str, str] = EXOTIC
    elif draft.settled.get("specials"):
        known = {text: kept for text, kept in ACTIVATIONS.items() if text not in INCONSISTENT}
    else:
        known = ACTIVATIONS | FURTHER
    plain = not draft.hostile or known is EXOTIC
    drawn = draft.in_turn(known) if plain else draft.random.choice(list(known))
    text = draft.fact("activation", drawn)
    if ">" in text and ADDCMUL in draft.notes:
        draft.danger()  # who decides by what addcmul made decides by a last bit that is not ours
    draft.note(f"activation {text}")
    _acted(draft, text.format(s=draft.s), saves=known.get(text) == "output")


def _acted(draft: Draft, text: str, *, saves: bool) -> None:
    """The weights. Where they may be changed in place they are no tensor that autograd keeps."""
    if draft.hostile or (not saves and draft.coin(0.1)):
        draft.emit(f"w = {text}")
        draft.saved |= {"w"} if saves else set()
    else:
        draft.emit(f"w = ({text}) * 1.0")
    draft.w = "w"


def mutating(draft: Draft, stage: str) -> None:
    """An activation in place."""
    lines = draft.random.choice(MUTATING)
    draft.note(f"activation {'; '.join(lines)}")
    fresh = draft.let("p", f"{draft.s} * 1.5")
    draft.emit(*(line.format(s=fresh) for line in lines), f"w = {fresh} + 0.0")
    draft.w = "w"


def again(draft: Draft, stage: str) -> None:
    """A second activation."""
    text = draft.random.choice(list(ACTIVATIONS | FURTHER))
    draft.note(f"activation {text}")
    if ">" in text and ADDCMUL in draft.notes:
        draft.danger()
    draft.assign("weights", f"({text.format(s=draft.w)}) * 1.0")


def positions(draft: Draft) -> tuple[str, str]:
    """Row and column numbers as tensors that broadcast against the scores."""
    numbers = []
    for letter in "nm":
        shape = ["-1" if dim == letter else "1" for dim in draft.dims]
        while draft.coin(0.3) and shape[0] == "1":
            shape = shape[1:]
        numbers.append(draft.let("i", f"torch.arange({letter}).view({', '.join(shape)})"))
    return numbers[0], numbers[1]


def built_mask(draft: Draft) -> str:
    """A bool mask computed in the graph: causal, window, block, lengths, and what combines them."""
    if draft.dims[-2:] == ("n", "m") and draft.coin(0.2):
        text = draft.random.choice(CAUSAL)
        draft.note(text)
        return draft.let("mask", text)
    rows, columns = positions(draft)
    template = draft.random.choice(BUILT)
    draft.note(template)
    text = template.format(r=rows, c=columns, end=draft.pick("n", "m", "5"))
    if "b" in draft.dims and draft.coin(0.4):
        dims = ["b" if dim == "b" else "1" for dim in draft.dims]
        lengths = draft.operand("most", dims, kind="int64", values=draft.pick("count", "ints 0 4"))
        text = f"({text}) & ({columns} < {lengths})"
    return draft.let("mask", text)


BUILT = (
    "{r} >= {c}",
    "{c} <= {r} + 1",
    "({r} - {c}).abs() < 3",
    "({r} - {c} < 3) & ({r} >= {c})",
    "({r} // 2) == ({c} // 2)",
    "{r} + {c} < {end}",
    "torch.logical_or({c} < 2, {r} >= {c})",
    "~({r} < {c})",
    "torch.logical_not({r} == {c})",
)
CAUSAL = (
    "torch.ones(n, m, dtype=torch.bool).tril()",
    "torch.arange(n)[:, None] >= torch.arange(m)",
    "~torch.ones(n, m, dtype=torch.bool).triu(1)",
)


def mask(draft: Draft, stage: str) -> None:
    def truth() -> str:
        if {"n", "m"} <= set(draft.dims) and draft.coin(0.4):
            return built_mask(draft)
        return broadcast(draft, "bool", 0.7)

    triangles = set(draft.dims[-2:]) == {"n", "m"}
    _written(
        draft, stage, MASKS + (TRIANGLES if triangles else ()),
        bool=truth,
        fill=lambda: draft.pick("0", "0.0", "-30.0", "-1e4", "0.5"),
        tri=lambda: draft.pick("tril", "triu"),
        zero_one=lambda: broadcast(draft, "zero_one", 0.7),
        int=lambda: broadcast(draft, "int", 0.7),
        float=lambda: broadcast(draft, "float", 0.7),
    )  # fmt: skip


def named_mask(draft: Draft, stage: str) -> None:
    """The mask that a hostility brings, or a name that stands for all."""
    x = draft.settled["mask"](draft)
    text = draft.settled.get("masking") or draft.random.choice(MASKING)
    draft.assign(stage, text.format(s=draft.subject(stage), x=x))


# How a truth value acts on the weights.
MASKING = (
    "{s}.masked_fill(~{x}, 0.0)",
    "{s}.masked_fill({x}.logical_not(), 0)",
    "torch.where({x}, {s}, 0.0)",
    "torch.where({x}, {s}, torch.zeros_like({s}))",
    "{s} * {x}",
    "{s} * {x}.to({s}.dtype)",
    "{x} * {s}",
    "{s}.where({x}, 0)",
)
MASKS = (
    *(text.replace("{x}", "{bool}") for text in MASKING),
    "{s} * {zero_one}",
    "{s} * {int}",
    "{s} * {float}",
    "{s} * {zero_one} * {bool}",
    "{s} * ({bool} * {zero_one})",
    "{s} * {bool}.float().to({s}.dtype)",
    "{s}.masked_fill({bool}, {fill})",
    "{s}.masked_fill(~{bool}, {fill})",
    "{s}.masked_fill({zero_one} == 0, 0.0)",
    "torch.where({bool}, {s}, {fill})",
    "torch.where({bool}, 0.0, {s})",
    "{s}.where({bool}, {s}.new_zeros(()))",
    "!{s}.masked_fill_({bool}, {fill})",
    "!{s} *= {bool}",
)
TRIANGLES = (
    "{s}.{tri}()",
    "torch.{tri}({s}, diagonal=1)",
    "{s} * torch.ones_like({s}).{tri}(-1)",
)


def reshape(draft: Draft, stage: str) -> None:
    """Another order or grouping of the same dims."""
    dims, x = draft.dims, draft.subject(stage)
    if draft.coin(0.35) and len(dims) > 2 and not any("*" in dim for dim in dims):
        at = draft.random.randrange(len(dims) - 2)
        draft.dims = (*dims[:at], f"{dims[at]}*{dims[at + 1]}", *dims[at + 2 :])
        spelled = draft.pick(f".flatten({at}, {at + 1})", f".reshape({shape_text(draft.dims)})")
        draft.assign(stage, f"{x}{spelled}")
    elif not draft.hostile:
        draft.dims = draft.shuffled(dims)
        draft.assign(stage, permuted_text(draft, x, dims, draft.dims))


NOTHINGS = (
    "{s}.clone()",
    "{s}.contiguous()",
    "{s}.to({s}.dtype)",
    "{s}.type_as({s})",
    "F.dropout({s}, 0.0)",
    "F.dropout({s}, 0.3, training=False)",
    "{s}.unsqueeze(1).squeeze(1)",
    "{s}[None][0]",
    "{s}[...]",
    "{s}.view_as({s})",
    "{s}.expand_as({s})",
    "torch.positive({s})",
    "{s}.reshape({s}.shape)",
    "{s}.movedim(0, -1).movedim(-1, 0)",
)
DEAD = ("{s}.clone()", "({s} * 2).sum()", "{s}.mean(-1)", "{s}.exp()")


def nothing(draft: Draft, stage: str) -> None:
    x = draft.subject(stage)
    if draft.coin(0.2):
        draft.let("unused", draft.random.choice(DEAD).format(s=x))
        # A later in-place step would change what a saved `unused` has seen.
        draft.assign(stage, f"{x} * 1.0")
    else:
        _written(draft, stage, NOTHINGS)


BEFORE: tuple[Step, ...] = (scale, scale, bias, bias, bias, table, mask, reshape, nothing)
AFTER: tuple[Step, ...] = (scale, scale, mask, mask, mask, reshape, nothing)


def plan(draft: Draft) -> tuple[list[Step], list[Step]]:
    """Some steps before the activation, and some from it on; with what hostilities want."""
    if draft.hostile:
        before, after = draft.pick(0, 0, 1, 1, 2), draft.pick(0, 0, 1, 1)
    else:
        before, after = draft.pick(0, 1, 1, 2, 2, 3), draft.pick(0, 1, 1, 2, 3)
    first = [draft.random.choice(BEFORE) for _ in range(before)]
    last = [draft.random.choice(AFTER) for _ in range(after)]
    if draft.settled.get("bias"):
        first.insert(draft.random.randint(0, len(first)), named_bias)
    if draft.settled.get("mixes"):
        steps = first if draft.settled["mixes"] == "middle" else last
        steps.insert(draft.random.randint(0, len(steps)), mixes)
    if draft.hostile:
        first, last = ([s for s in steps if s is not reshape] for steps in (first, last))
    if draft.settled.get("mask"):
        last = [named_mask, *(step for step in last if step is not mask)]
    return first, [*_activations(draft), *last]


def _activations(draft: Draft) -> list[Step]:
    if not draft.hostile and draft.coin(0.12):
        return [mutating]
    if draft.hostile:
        return [activation]
    return draft.pick([], *[[activation]] * 6, [activation, again])
