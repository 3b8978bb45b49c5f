"""Attention without softmax that is right to rewrite: [B, H, N, D], [B, N, D], GQA, [B, N, H, D].

`write_dense` writes one from top to bottom and calls the stages of the draft on its way.
"""

from .draft import Draft
from .spellings import (
    ACTIVATIONS,
    EXOTIC,
    FIRST,
    INCONSISTENT,
    MASKING,
    RARE_FIRST,
    RARE_SECOND,
    SCALES,
    SECOND,
)

FAMILIES = ("heads", "heads", "batch", "gqa", "bnhd")


def write_dense(draft: Draft) -> None:
    """Operands, products and all between; the result's name is draft.o."""
    _draw_sizes(draft)
    _operands(draft)
    draft.stage("start")
    _layout(draft)
    draft.stage("before")
    _opening(draft)
    island = draft.fact("island", "")
    if island:
        with draft.inside(island):
            _region(draft)
    else:
        _region(draft)
    draft.stage("after")
    if draft.fact("family") == "bnhd" and draft.coin():
        draft.emit(f"{draft.o} = {draft.o}.transpose(1, 2).reshape(b, n, -1)")
    draft.stage("end")


def _region(draft: Draft) -> None:
    write_scores(draft)
    draft.stage("middle")
    write_activation(draft)
    draft.stage("weights")
    write_mask(draft)
    draft.stage("late")
    write_second(draft)


def _draw_sizes(draft: Draft) -> None:
    random = draft.random
    family = draft.fact("family", random.choice(FAMILIES))
    groups = random.choice((1, 2))
    heads = groups * random.choice((2, 3)) if family == "gqa" else random.choice((1, 2, 3))
    drawn = {
        "b": random.choice((1, 2, 2)),
        "h": min(heads, 4),
        "g": groups,
        "n": random.randint(2, 9),
        "m": random.randint(2, 9),
        "d": random.choice((2, 3, 4, 8)),
        "e": random.choice((2, 4, 5)),
    }
    if draft.coin(0.4):
        drawn["m"] = drawn["n"]
    if draft.fact("square", False):
        drawn["m"] = drawn["n"]
    drawn["e"] = drawn["d"] if draft.fact("same_width", draft.coin()) else drawn["e"]
    drawn.update(draft.settled.get("sizes", {}))
    draft.sizes = drawn


def outer_of(draft: Draft) -> str:
    return "b" if draft.fact("family") == "batch" else "b, h"


def score_shape(draft: Draft) -> tuple[int, ...]:
    z = draft.sizes
    outer = (z["b"],) if draft.fact("family") == "batch" else (z["b"], z["h"])
    return (*outer, z["n"], z["m"])


def _operands(draft: Draft) -> None:
    z, family = draft.sizes, draft.fact("family")
    for name, rows, width in (("q", "n", "d"), ("k", "m", "d"), ("v", "m", "e")):
        heads = "g" if family == "gqa" and name != "q" else "h"
        shape = {
            "batch": (z["b"], z[rows], z[width]),
            "bnhd": (z["b"], z[rows], z[heads], z[width]),
        }.get(family, (z["b"], z[heads], z[rows], z[width]))
        facts = draft.settled.get("facts", {}).get(name, {})
        draft.operand(name, *shape, **facts)
    names = {"batch": "b, n, d", "bnhd": "b, n, h, d"}.get(family, "b, h, n, d")
    rows = 1 if family in ("batch", "bnhd") else 2
    q, k = draft.fact("q_source", "q"), draft.fact("k_source", "k")
    draft.emit(f"{names} = {q}.shape", f"m = {k}.shape[{rows}]")


def _layout(draft: Draft) -> None:
    """Bring the operands to [B, H, N, D] as models do."""
    family = draft.fact("family")
    if family == "bnhd":
        for name in "qkv":
            draft.emit(f"{name} = {getattr(draft, name)}.transpose(1, 2)")
            setattr(draft, name, name)
    if family == "gqa":
        spelled = draft.pick(
            "{x}.repeat_interleave(h // {x}.shape[1], dim=1)",
            "{x}[:, :, None].expand(-1, -1, h // {x}.shape[1], -1, -1)"
            ".reshape(b, h, m, {x}.shape[-1])",
        )
        for name in "kv":
            x = getattr(draft, name)
            draft.emit(f"{name} = {spelled.format(x=x)}")
            setattr(draft, name, name)
    if draft.coin(0.15) and draft.settled.get("plain_operands") is None:
        draft.emit(f"q = {draft.q} * {draft.number()}")
        draft.q = "q"


def _opening(draft: Draft) -> None:
    """The first product."""
    swap = "0, 2, 1" if draft.fact("family") == "batch" else "0, 1, 3, 2"
    letters = "b" if draft.fact("family") == "batch" else "bh"
    table = RARE_FIRST if draft.coin(0.04) else FIRST
    name = draft.fact("first", draft.random.choice(list(table)))
    text = {**FIRST, **RARE_FIRST}.get(name, name)
    draft.notes.append(f"first {name}")
    draft.settled["first_text"] = text.format(
        q=draft.q, k=draft.k, swap=swap, o=letters, outer=outer_of(draft)
    )


def write_scores(draft: Draft) -> None:
    """The first product and, in random order, scale and bias."""
    _product(draft, f"s = {draft.settled['first_text']}", draft.settled.get("first_island"))
    draft.s = "s"
    draft.stage("scores")
    steps = [_scale] if draft.coin(0.7) else []
    if draft.fact("bias", draft.coin(0.3)):
        steps.append(_bias)
    draft.random.shuffle(steps)
    for step in steps:
        step(draft)


def _scale(draft: Draft) -> None:
    if draft.coin(0.15):
        name = draft.operand("scale", *draft.pick((), (1,)), values="positive")
        draft.emit(f"{draft.s} = {draft.s} * {draft.settled.get('scale_name', name)}")
        return
    draft.emit(f"{draft.s} = {draft.random.choice(SCALES).format(s=draft.s)}")


def mask_dims(draft: Draft) -> tuple[int, ...]:
    """The shape of a mask or bias that broadcasts to the scores."""
    z = draft.sizes
    full = score_shape(draft)
    shapes = [(z["n"], z["m"]), (1, z["m"]), (z["m"],), full, (*[1] * (len(full) - 2), *full[-2:])]
    return draft.random.choice(shapes)


def _bias(draft: Draft) -> None:
    name = draft.operand("bias", *draft.settled.get("bias_shape", mask_dims(draft)))
    name = draft.settled.get("bias_name", name)
    draft.emit(
        f"{draft.s} = "
        + draft.pick("{s} + {x}", "{s}.add({x})", "{x} + {s}").format(s=draft.s, x=name)
    )


def write_activation(draft: Draft) -> None:
    table = EXOTIC if draft.fact("exotic", False) else ACTIVATIONS
    avoided = INCONSISTENT if draft.settled.get("specials") else ()
    known = [x for x in table if x not in avoided]
    text = draft.fact("activation", draft.random.choice(known))
    draft.emit(f"w = {text.format(s=draft.s)}")
    draft.notes.append(f"activation {text}")
    draft.w = "w"
    if {**ACTIVATIONS, **EXOTIC}.get(text) == "output":
        draft.saved.add("w")


def write_mask(draft: Draft) -> None:
    """A mask on the weights: given, made in the graph, or what a hostility brings."""
    maker = draft.settled.get("mask")
    if maker is None:
        if not draft.coin(0.5):
            return
        maker = draft.random.choice((_given, _causal, _lengths, _window))
    x = maker(draft)
    if x is None:
        return
    text = draft.settled.get("masking") or draft.random.choice(MASKING)
    draft.emit(f"w = {text.format(w=draft.w, x=x)}")
    draft.w = "w"
    draft.saved.discard("w")


def _given(draft: Draft) -> str:
    return draft.operand("mask", *mask_dims(draft), kind="bool", values="bool")


def _causal(draft: Draft) -> str:
    draft.emit_one(
        "mask = torch.ones(n, m, dtype=torch.bool).tril()",
        "mask = torch.arange(n)[:, None] >= torch.arange(m)",
        "mask = ~torch.ones(n, m, dtype=torch.bool).triu(1)",
    )
    return "mask"


def _lengths(draft: Draft) -> str:
    z = draft.sizes
    lens = draft.operand("lens", z["b"], kind="int64", values=f"ints 0 {z['m']}")
    ones = ", ".join(["None"] * (len(score_shape(draft)) - 1))
    draft.emit(f"mask = torch.arange(m) < {lens}[:, {ones}]")
    return "mask"


def _window(draft: Draft) -> str:
    width = draft.random.randint(1, 4)
    draft.emit(
        "away = torch.arange(n)[:, None] - torch.arange(m)[None, :]",
        f"mask = away.abs() <= {width}",
    )
    return "mask"


def write_second(draft: Draft) -> None:
    letters = "b" if draft.fact("family") == "batch" else "bh"
    table = RARE_SECOND if draft.coin(0.04) else SECOND
    name = draft.fact("second", draft.random.choice(list(table)))
    text = {**SECOND, **RARE_SECOND}.get(name, name)
    draft.notes.append(f"second {name}")
    draft.o = "out"
    body = text.format(w=draft.w, v=draft.v, o=letters, outer=outer_of(draft))
    _product(draft, f"out = {body}", draft.settled.get("second_island"))


def _product(draft: Draft, line: str, island: str | None) -> None:
    if island is None:
        draft.emit(line)
        return
    with draft.inside(island):
        draft.emit(line)
