"""In-place writes before, between and after the products, through every kind of alias."""

from ..draft import Draft
from .table import hostility
from .writing import (
    CONTIGUOUS_VIEWS,
    COPIES,
    DETACHED,
    ELEMENTS,
    MULTIPLE,
    UNTRACKED,
    VIEWS,
    WIDER,
    WRITES,
    copied,
    freeze,
    write,
)


def _before(draft: Draft, aliases: tuple[str, ...], writes: tuple[str, ...] = WRITES) -> None:
    """Copy an operand, then write to the copy, before the first product."""

    def act(draft: Draft) -> None:
        for x in draft.random.sample("qkv", draft.pick(1, 1, 2)):
            write(draft, copied(draft, x), draft.random.choice(aliases), writes)

    draft.at("before", act)


@hostility("write before: the copy itself", exact=True)
def _(draft: Draft) -> None:
    _before(draft, ("{x}",))


@hostility("write before: a view", exact=True)
def _(draft: Draft) -> None:
    _before(draft, VIEWS)


@hostility("write before: detached", exact=True)
def _(draft: Draft) -> None:
    _before(draft, DETACHED)


@hostility("write before: elements", exact=True)
def _(draft: Draft) -> None:
    _before(draft, ("{x}", "{x}", "{x}[:]", "{x}.data"), ELEMENTS)


@hostility("write before: one of several views", exact=True)
def _(draft: Draft) -> None:
    draft.settle(training="none")
    _before(draft, MULTIPLE)


@hostility("write before: foreach", exact=True, at="before")
def _(draft: Draft) -> None:
    x, y = draft.random.sample("qkv", 2)
    copied(draft, x)
    copied(draft, y)
    call = draft.pick("mul_([{}, {}], 0.5)", "add_([{}, {}], 0.1)", "neg_([{}, {}])")
    draft.emit("torch._foreach_" + call.format(x, y))


@hostility("write before: the input itself", exact=True)
def _(draft: Draft) -> None:
    """`contiguous`, `to`, `reshape` give the input back where nothing is to be done."""
    x = draft.pick("q", "k", "v")
    freeze(draft, x)
    draft.settle(pure_inputs=False)

    def act(draft: Draft) -> None:
        alias = draft.random.choice(VIEWS + CONTIGUOUS_VIEWS[:4] + DETACHED + MULTIPLE)
        write(draft, getattr(draft, x), "{x}" if draft.coin(0.3) else alias)

    draft.at("start", act)


@hostility("write on a cast", exact=True)
def _(draft: Draft) -> None:
    draft.settle(dtype=draft.pick("bfloat16", "bfloat16", "float32"), plain_operands=True)

    def act(draft: Draft) -> None:
        wider = draft.random.choice(WIDER[draft.fact("dtype")])
        narrow = "double()" in wider or "float64" in wider or "torch.double" in wider
        chosen = draft.random.sample("qkv", draft.pick(1, 1, 2, 3))
        for x in "qkv":
            table = (wider,) if x in chosen else (".double()" if narrow else ".float()",)
            text = table[0] if x in chosen else "{x}" + table[0]
            draft.emit(f"{x} = {text.format(x=getattr(draft, x))}")
            setattr(draft, x, x)
        for x in chosen:
            alias = draft.random.choice(("{x}", "{x}", *VIEWS, *DETACHED))
            write(draft, x, alias, WRITES + (ELEMENTS if alias == "{x}" else ()))

    draft.at("before", act)


@hostility("write on a cast mask or bias", exact=True)
def _(draft: Draft) -> None:
    """`mask.float().fill_diagonal_(0)`, `bias.float().mul_(0.5)` and their like."""
    draft.settle(dtype=draft.pick("bfloat16", "float32"), mask=_cast_mask, masking="{w} * {x}")


def _cast_mask(draft: Draft) -> str:
    z, cast = draft.sizes, "float" if draft.fact("dtype") == "bfloat16" else "double"
    wide = "torch.float32" if cast == "float" else "torch.float64"
    kind = draft.pick("bool", "float", "uint8")
    values = {"bool": "bool", "float": "zero_one", "uint8": "ints 0 1"}[kind]
    name = draft.operand("keep", z["n"], z["m"], kind=kind, values=values, grad=False)
    draft.emit(f"mask = {name}.{draft.pick(f'{cast}()', f'to({wide})', f'type({wide})')}")
    text = draft.pick("mask.fill_diagonal_(0)", "mask.fill_diagonal_(1.0)", "")
    draft.emit(text) if text else write(draft, "mask", draft.random.choice(("{x}", *VIEWS)))
    draft.emit(f"v = {draft.v}.{cast}()")
    draft.v = "v"
    return "mask"


@hostility("write to the source of a cast", exact=True)
def _(draft: Draft) -> None:
    """The cast keeps the old values; the tensor that it was made from gets new ones."""
    draft.settle(dtype="bfloat16", plain_operands=True, pure_inputs=False)
    x = draft.pick("q", "k", "v")
    freeze(draft, x)

    def act(draft: Draft) -> None:
        source = draft.fresh("source")
        draft.emit(f"{source} = {getattr(draft, x)}")
        for y in "qkv":
            draft.emit(f"{y} = {getattr(draft, y)}.float()")
            setattr(draft, y, y)
        write(draft, source, draft.random.choice(("{x}", *VIEWS)))

    draft.at("before", act)


@hostility("write between: an operand", exact=False)
def _(draft: Draft) -> None:
    x, stage = draft.pick("q", "k", "v"), draft.pick("scores", "middle", "weights", "late")
    direct = draft.coin(0.4)
    if direct:
        draft.settle(training="none")
    else:
        draft.at("before", lambda draft: copied(draft, x))

    def act(draft: Draft) -> None:
        alias = draft.random.choice(("{x}", *VIEWS) if direct else UNTRACKED)
        write(draft, getattr(draft, x), alias)

    draft.at(stage, act)


@hostility("write between: an operand", exact=False)
def _(draft: Draft) -> None:
    draft.settle(bias=True, bias_name="bias", pure_inputs=False)
    freeze(draft, "bias")

    def start(draft: Draft) -> None:
        z = draft.sizes
        draft.settled["bias_shape"] = (z["n"], z["m"])

    def act(draft: Draft) -> None:
        if "bias" in draft.operands:
            draft.operands["bias"].grad = False
            write(draft, "bias", draft.random.choice(("{x}", *VIEWS)))

    draft.at("start", start)
    draft.at(draft.pick("middle", "weights", "late", "after"), act)


@hostility("write scores in place", exact=True, at="scores")
def _(draft: Draft) -> None:
    text = draft.pick(
        "{s}.mul_(0.5)", "{s} *= 0.25", "{s}.add_(0.1)", "{s}.div_(d ** 0.5)", "{s} += 1",
        "{s}.clamp_(-2, 2)", "{s}.neg_()", "{s}.sub_(0.5)", "{s} /= 2",
    )  # fmt: skip
    draft.emit(text.format(s=draft.s))


@hostility("write scores or weights: a view", exact=False, at="scores")
def _(draft: Draft) -> None:
    write(draft, draft.s, draft.random.choice(VIEWS))


@hostility("write scores or weights: a view", exact=False, at="scores")
def _(draft: Draft) -> None:
    write(draft, draft.s, "{x}", ELEMENTS)


@hostility("write scores or weights: detached", exact=False)
def _(draft: Draft) -> None:
    def act(draft: Draft) -> None:
        alias = draft.random.choice(DETACHED)
        if draft.coin(0.5):
            size = "torch.ones(n, m, dtype=torch.bool).triu(1)"
            draft.emit(f"{draft.s}.{draft.pick('data', 'detach()')}.masked_fill_({size}, 0.0)")
        else:
            write(draft, draft.s, alias, WRITES + ELEMENTS[:4])

    draft.at(draft.pick("scores", "middle"), act)


@hostility("write weights in place", exact=True)
def _(draft: Draft) -> None:
    draft.settle(activation=draft.pick("F.silu({s})", "F.gelu({s})", "{s}.abs()", "F.mish({s})"))

    def act(draft: Draft) -> None:
        causal = "torch.ones(n, m, dtype=torch.bool).triu(1)"
        text = draft.pick(
            f"w.masked_fill_({causal}, 0.0)", "w.mul_(0.5)", "w /= m", "w.div_(n)", "w *= 0.5"
        )
        draft.emit(text)

    draft.at("weights", act)


@hostility("write scores or weights: a view", exact=False)
def _(draft: Draft) -> None:
    draft.settle(activation=draft.pick("F.silu({s})", "F.gelu({s})", "{s}.abs()", "F.mish({s})"))
    draft.at("weights", lambda draft: write(draft, "w", draft.random.choice(VIEWS)))


@hostility("write scores or weights: detached", exact=False)
def _(draft: Draft) -> None:
    def act(draft: Draft) -> None:
        table = UNTRACKED if draft.saved and draft.training else DETACHED
        write(draft, "w", draft.random.choice(table))

    draft.at(draft.pick("weights", "late"), act)


@hostility("write scores or weights: a view", exact=False, at="weights")
def _(draft: Draft) -> None:
    """A copy of the weights that is changed; the weights themselves are used."""
    name = draft.fresh("copy")
    text = draft.random.choice((*COPIES, "{x}.to(torch.float64, copy=True)"))
    draft.emit(f"{name} = {text.format(x='w')}")
    write(draft, name, draft.random.choice(("{x}", *VIEWS)))
    if draft.coin():
        draft.emit(f"w = {name}.to(w.dtype)")
