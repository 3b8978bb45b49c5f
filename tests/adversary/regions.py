"""Attention without softmax that is right to rewrite, from top to bottom.

program  = operands, first product, steps, second product, tail
tail     = another layout | gating | residual | a linear layer | layer norm | nothing

`write_dense` calls the stages of the draft on its way.
"""

from . import steps
from .draft import Draft
from .products import Products, family_of, restored
from .sizes import draw_sizes
from .views import make_view, permuted_text


def write_dense(draft: Draft) -> None:
    """Operands, products and all between; the result's name is draft.o."""
    draw_sizes(draft)
    products = family_of(draft)
    draft.stage("start")
    _attention(draft, products)
    draft.stage("end")
    if not draft.hostile and draft.label == "exact" and draft.coin(0.06):
        draft.note("two regions")
        first = draft.let("first", draft.o)
        drawn = ("family", "first", "second", "activation")
        draft.settled = {k: v for k, v in draft.settled.items() if k not in drawn}
        _attention(draft, family_of(draft))
        draft.outputs.append(first)


def _attention(draft: Draft, products: Products) -> None:
    draft.regions += 1
    for name in "qkv":
        make_view(draft, name, getattr(products, name))
    products.enter(draft)
    draft.stage("before")
    island = draft.fact("island", "")
    if island:
        with draft.inside(island):
            _region(draft, products)
    else:
        _region(draft, products)
    draft.stage("after")
    _tail(draft, products.output)


def _region(draft: Draft, products: Products) -> None:
    draft.dims = products.scores
    before, after = steps.plan(draft)
    kinds = {*before, *after}
    if not kinds - {steps.nothing, steps.reshape, steps.scale}:
        draft.note("only a product of three")
        draft.danger()
    _product(draft, "s", products.first(draft), "first_island")
    draft.s = "s"
    draft.stage("scores")
    _between(draft, before, after)
    draft.stage("late")
    text = restored(draft, products.scores)
    if text != draft.w:
        draft.assign("weights", text)
    _product(draft, "out", products.second(draft), "second_island")
    draft.o = "out"


def _between(draft: Draft, before: list[steps.Step], after: list[steps.Step]) -> None:
    for step in before:
        step(draft, "middle")
    draft.stage("middle")
    if not any(step in (steps.activation, steps.mutating) for step in after):
        draft.emit(f"w = {draft.s}")
        draft.w = "w"
    for i, step in enumerate(after):
        step(draft, "weights")
        if i == 0:
            draft.stage("weights")


def _product(draft: Draft, name: str, text: str, island: str) -> None:
    header = draft.settled.get(island)
    if header is None:
        draft.emit(f"{name} = {text}")
        return
    with draft.inside(header):
        draft.emit(f"{name} = {text}")


def _tail(draft: Draft, dims: tuple[str, ...]) -> None:
    """What models do with the output."""
    style = draft.pick("none", "none", "layout", "heads", "gate", "residual", "norm", "linear")
    if draft.settled.get("specials") or (draft.hostile and draft.coin(0.6)):
        return
    draft.note(f"tail {style}")
    out = draft.o
    if style in ("heads", "linear") and sorted(dims) == sorted("bhne"):
        merged = permuted_text(draft, out, dims, ("b", "n", "h", "e")) + ".reshape(b, n, h * e)"
        draft.emit(f"{out} = {merged}")
        if style == "linear":
            draft.emit(f"{out} = {out} @ {draft.operand('weight', 'h*e 5')}.to({out}.dtype)")
    elif style == "layout":
        draft.emit(f"{out} = {permuted_text(draft, out, dims, draft.shuffled(dims))}")
    elif style == "gate":
        draft.emit(f"{out} = {out} * F.silu({draft.operand('u', dims)})")
    elif style == "residual":
        draft.emit(f"{out} = {draft.operand('u', dims)} + {out}")
    elif style == "norm":
        # With an eps that counts: the norm of a row of two near values is all rounding.
        draft.emit(f"{out} = F.layer_norm({out}, {out}.shape[-1:], eps=1.0)")
