"""What stands between the two products: every step here is point-wise in the scores, so fusable.

step       = scale | bias | activation | mask | reshape | nothing
scale      = score (·|/) (number | size | 0-dim, [1], [h,1,1], row or any broadcast tensor)
bias       = score (+|-) (number | broadcast tensor | distance built from positions)
mask       = score · tensor | masked_fill | where | tril, with a tensor of any broadcast form and
             kind, or one built from positions, lengths or windows
reshape    = a permutation or flattening of the dims of the scores
nothing    = clone, contiguous, dropout with p=0, same-dtype cast, a dead use, ...
"""

from collections.abc import Callable
from dataclasses import replace

from tests.fuzz.activations import ACTIVATIONS, MUTATING
from tests.fuzz.draft import FUSABLE, REFUSABLE, Draft, Scores, permute_text, shape_text

Step = Callable[[Draft, Scores], Scores]


def assign(draft: Draft, scores: Scores, value: str) -> Scores:
    return replace(scores, name=draft.let("s", value))


def broadcast(draft: Draft, scores: Scores, kind: str, keep: float = 0.6) -> str:
    """A new operand that broadcasts against the scores, in one of its usual spellings."""
    remaining = [dim if draft.chance(keep) else "1" for dim in scores.dims]
    style = draft.pick(["plain", "plain", "plain", "indexed", "permuted", "expanded"])
    draft.feature(f"aux:{style}")
    if style == "indexed":
        stored = [dim for dim in remaining if dim != "1"]
        index = ", ".join("None" if dim == "1" else ":" for dim in remaining)
        name = draft.operand("a", f"{kind}: {' '.join(stored)}")
        return f"{name}[{index}]" if stored else name
    if style == "permuted":
        stored = draft.shuffled(remaining)
        name = draft.operand("a", f"{kind}: {' '.join(stored)}")
        return permute_text(draft, name, stored, remaining)
    while remaining and remaining[0] == "1" and draft.chance(0.6):
        remaining = remaining[1:]
    name = draft.operand("a", f"{kind}: {' '.join(remaining)}")
    return f"{name}.expand({shape_text(scores.dims)})" if style == "expanded" else name


def scale(draft: Draft, scores: Scores) -> Scores:
    draft.feature("scale")
    template = draft.pick(SCALES)
    if template.endswith("="):  # in place
        draft.emit(f"{scores.name} {template} {draft.pick(['0.5', '4'])}")
        return scores
    kind = "positive" if "/" in template or "div" in template else "float"
    fields = {"s": scores.name, "size": draft.pick(["n", "m", "max(n, m)", "d"])}
    if "{a}" in template:
        fields["a"] = broadcast(draft, scores, kind, keep=draft.pick([0.0, 0.3, 0.6]))
    if "{c}" in template:
        fields["c"] = broadcast(draft, scores, "count", keep=0.3)
    return assign(draft, scores, template.format(**fields))


SCALES = [
    "{s} * 0.25",
    "0.5 * {s}",
    "{s} / 3",
    "{s} / math.sqrt(d)",
    "{s} * d ** -0.5",
    "torch.mul({s}, 0.3)",
    "{s}.div(4.0)",
    "-{s}",
    "{s} / {size}",
    "{s}.div({size})",
    "{s} * (1.0 / {size})",
    "{s} * {a}",
    "{a} * {s}",
    "{s} / {a}",
    "{s} / {c}",
    "{s}.mul_(0.5)",
    "*=",
    "/=",
]


def bias(draft: Draft, scores: Scores) -> Scores:
    draft.feature("bias")
    template = draft.pick(BIASES)
    if template.startswith(ADDCMUL):
        draft.feature("bias:addcmul")
    if "{far}" in template and not {"n", "m"} <= set(scores.dims):
        template = "{s} + {a}"
    fields = {"s": scores.name}
    if "{a}" in template:
        fields["a"] = broadcast(draft, scores, draft.pick(["float", "float", "const"]), keep=0.7)
    if "{x}" in template:
        fields["x"] = broadcast(draft, scores, "float", keep=0.3)
    if "{far}" in template:
        rows, columns = positions(draft, scores)
        fields["far"] = f"({rows} - {columns}).abs().to({scores.name}.dtype)"
    if template.startswith("!"):  # in place
        draft.emit(template[1:].format(**fields))
        return scores
    return assign(draft, scores, template.format(**fields))


ADDCMUL = "torch.addcmul"
BIASES = [
    "{s} + {a}",
    "{s} + {a}",
    "{a} + {s}",
    "{s} - {a}",
    "{a} - {s}",
    "torch.add({s}, {a}, alpha=0.5)",
    "{s}.sub({a}, alpha=2)",
    "{s} + 0.1",
    "1.5 - {s}",
    "0.25 * ({s} + {a})",
    ADDCMUL + "({s}, {a}, {x}, value=0.5)",
    "{s} - 0.1 * {far}",
    "{s} + {x} * {far}",
    "!{s} += {a}",
    "!{s}.add_({a})",
    "!{s}.sub_({a}, alpha=0.5)",
]


def activation(draft: Draft, scores: Scores) -> Scores:
    if draft.chance(0.12):
        name, lines = draft.pick(MUTATING)
        draft.feature(f"act:{name}")
        fresh = draft.let("p", f"{scores.name} * 1.5")
        for line in lines:
            draft.emit(line.format(s=fresh))
        # The result may be saved for the backward: a later in-place step needs a copy.
        return assign(draft, scores, f"{fresh} + 0.0")
    name, template = draft.pick(ACTIVATIONS)
    # Who decides by what addcmul made decides by a last bit that is not ours.
    decides = ">" in template and "bias:addcmul" in draft.features
    draft.feature(f"act:{name}", REFUSABLE if decides else FUSABLE)
    return assign(draft, scores, f"({template.format(s=scores.name)}) * 1.0")


def positions(draft: Draft, scores: Scores) -> tuple[str, str]:
    """Row and column numbers as tensors that broadcast against the scores."""
    numbers = []
    for letter in "nm":
        shape = ["1"] * len(scores.dims)
        shape[scores.dims.index(letter)] = "-1"
        if draft.chance(0.3):
            while shape[0] == "1":
                shape = shape[1:]
        numbers.append(draft.let("i", f"torch.arange({letter}).view({', '.join(shape)})"))
    return numbers[0], numbers[1]


def built_mask(draft: Draft, scores: Scores) -> str:
    """A bool mask computed in the graph: causal, window, block, lengths, and what combines them."""
    rows, columns = positions(draft, scores)
    forms = [
        f"{rows} >= {columns}",
        f"{columns} <= {rows} + 1",
        f"({rows} - {columns}).abs() < 3",
        f"({rows} - {columns} < 3) & ({rows} >= {columns})",
        f"({rows} // 2) == ({columns} // 2)",
        f"{rows} + {columns} < {draft.pick(['n', 'm', '5'])}",
        f"torch.logical_or({columns} < 2, {rows} >= {columns})",
        f"~({rows} < {columns})",
        f"torch.logical_not({rows} == {columns})",
    ]
    text = draft.pick(forms)
    if "b" in scores.dims and draft.chance(0.4):
        shape = ["b" if dim == "b" else "1" for dim in scores.dims]
        lengths = draft.operand("len", f"count: {' '.join(shape)}")
        text = f"({text}) & ({columns} < {lengths})"
    draft.feature("mask:built")
    return draft.let("mask", text)


def mask(draft: Draft, scores: Scores) -> Scores:
    draft.feature("mask")
    s, template = scores.name, draft.pick(MASKS)
    fields = {"s": s, "fill": draft.pick(["0", "0.0", "-30.0", "-1e4", "0.5"])}
    if "{tri}" in template:
        if scores.dims[-2:] not in (("n", "m"), ("m", "n")):
            template = "{s} * {bool}"
        fields["tri"] = draft.pick(["tril", "triu"])
    if "{bool}" in template:
        built = "n" in scores.dims and "m" in scores.dims and draft.chance(0.4)
        fields["bool"] = (
            built_mask(draft, scores) if built else broadcast(draft, scores, "bool", keep=0.7)
        )
    for kind in ("zero_one", "int", "float"):
        if f"{{{kind}}}" in template:
            fields[kind] = broadcast(draft, scores, kind, keep=0.7)
    if template.startswith("!"):
        draft.emit(template[1:].format(**fields))
        return scores
    return assign(draft, scores, template.format(**fields))


MASKS = [
    "{s} * {bool}",
    "{bool} * {s}",
    "{s} * {zero_one}",
    "{s} * {int}",
    "{s} * {float}",
    "{s} * {zero_one} * {bool}",
    "{s} * ({bool} * {zero_one})",
    "{s} * {bool}.to({s}.dtype)",
    "{s} * {bool}.float().to({s}.dtype)",
    "{s}.masked_fill({bool}, {fill})",
    "{s}.masked_fill(~{bool}, {fill})",
    "{s}.masked_fill({zero_one} == 0, 0.0)",
    "torch.where({bool}, {s}, {fill})",
    "torch.where({bool}, 0.0, {s})",
    "torch.where({bool}, {s}, torch.zeros_like({s}))",
    "{s}.where({bool}, {s}.new_zeros(()))",
    "{s}.{tri}()",
    "torch.{tri}({s}, diagonal=1)",
    "{s} * torch.ones_like({s}).{tri}(-1)",
    "!{s}.masked_fill_({bool}, {fill})",
    "!{s} *= {bool}",
]


def reshape(draft: Draft, scores: Scores) -> Scores:
    """Another order or grouping of the same dims."""
    draft.feature("reshape")
    dims = scores.dims
    if draft.chance(0.35) and len(dims) > 2 and not any("*" in dim for dim in dims):
        at = draft.rng.randrange(len(dims) - 2)
        merged = (*dims[:at], f"{dims[at]}*{dims[at + 1]}", *dims[at + 2 :])
        spelling = draft.pick([f".flatten({at}, {at + 1})", f".reshape({shape_text(merged)})"])
        return Scores(draft.let("s", f"{scores.name}{spelling}"), merged)
    target = draft.shuffled(dims)
    return Scores(draft.let("s", permute_text(draft, scores.name, dims, target)), target)


NOTHINGS = [
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
]
DEAD = ["{s}.clone()", "({s} * 2).sum()", "{s}.mean(-1)", "{s}.exp()"]


def nothing(draft: Draft, scores: Scores) -> Scores:
    draft.feature("nothing")
    if draft.chance(0.2):
        draft.let("unused", draft.pick(DEAD).format(s=scores.name))
        # A later in-place step would change what a saved `unused` has seen.
        return assign(draft, scores, f"{scores.name} * 1.0")
    return assign(draft, scores, draft.pick(NOTHINGS).format(s=scores.name))


BEFORE: list[Step] = [scale, scale, bias, bias, bias, mask, reshape, nothing]
AFTER: list[Step] = [scale, scale, mask, mask, mask, reshape, nothing]


def plan(draft: Draft) -> list[Step]:
    """Some steps, one activation or two (or none), some more steps."""
    before = [draft.pick(BEFORE) for _ in range(draft.pick([0, 1, 1, 2, 2, 3]))]
    activations = [activation] * draft.pick([0, 1, 1, 1, 1, 1, 1, 2])
    after = [draft.pick(AFTER) for _ in range(draft.pick([0, 1, 1, 2, 3]))]
    return [*before, *activations, *after]
