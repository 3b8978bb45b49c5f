"""In-place writes before, between and after the products, through every kind of alias."""

from collections.abc import Callable

from ..draft import Draft
from .table import fact, hostility, lines
from .writing import (
    ANY,
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
    widened,
    write,
)


def _before(aliases: tuple[str, ...], writes: tuple[str, ...] = WRITES) -> Callable:
    """Copy an operand, then write to the copy, before the first product."""

    def act(draft: Draft) -> None:
        for x in draft.random.sample("qkv", draft.pick(1, 1, 2)):
            write(draft, copied(draft, x), draft.random.choice(aliases), writes)

    return act


for _name, _act, _facts in (
    ("the copy itself", _before(("{x}",)), {}),
    ("a view", _before(VIEWS), {}),
    ("detached", _before(DETACHED), {}),
    ("elements", _before(("{x}", "{x}", "{x}[:]", "{x}.data"), ELEMENTS), {}),
    ("one of several views", _before(MULTIPLE), {"training": "none"}),
):
    hostility(f"write before: {_name}", exact=True, at="before", **_facts)(_act)


@hostility("write before: foreach", exact=True, at="before")
def _(draft: Draft) -> None:
    x, y = draft.random.sample("qkv", 2)
    copied(draft, x)
    copied(draft, y)
    call = draft.pick("mul_([{}, {}], 0.5)", "add_([{}, {}], 0.1)", "neg_([{}, {}])")
    draft.emit("torch._foreach_" + call.format(x, y))


@hostility("write before: the input itself", exact=True, pure_inputs=False)
def _(draft: Draft) -> None:
    """`contiguous`, `to`, `reshape` give the input back where nothing is to be done."""
    x = draft.pick("q", "k", "v")
    freeze(draft, x)

    def act(draft: Draft) -> None:
        alias = draft.random.choice(VIEWS + CONTIGUOUS_VIEWS[:4] + DETACHED + MULTIPLE)
        write(draft, getattr(draft, x), "{x}" if draft.coin(0.3) else alias)

    draft.at("start", act)


# Families whose products take nothing but query, key and value.
PLAIN = ["heads", "batch", "gqa", "bnhd"]


@hostility(
    "write on a cast", exact=True, at="before", dtype=["bfloat16", "bfloat16", "float32"],
    family=PLAIN, plain_operands=True,
)  # fmt: skip
def _(draft: Draft) -> None:
    wider = draft.random.choice(WIDER[draft.fact("dtype")])
    other = "{x}.double()" if "double" in wider or "float64" in wider else "{x}.float()"
    chosen = draft.random.sample("qkv", draft.pick(1, 1, 2, 3))
    for x in "qkv":
        text = (wider if x in chosen else other).format(x=getattr(draft, x))
        draft.emit(f"{x} = {text}")
        setattr(draft, x, x)
    for x in chosen:
        alias = draft.random.choice(("{x}", "{x}", *VIEWS, *DETACHED))
        write(draft, x, alias, WRITES + (ELEMENTS if alias == "{x}" else ()))


def _cast_mask(draft: Draft) -> str:
    """`mask.float().fill_diagonal_(0)`, `bias.float().mul_(0.5)` and their like."""
    cast = "float" if draft.fact("dtype") == "bfloat16" else "double"
    wide = "torch.float32" if cast == "float" else "torch.float64"
    kind = draft.pick("bool", "float", "uint8")
    values = {"bool": "bool", "float": "zero_one", "uint8": "ints 0 1"}[kind]
    name = draft.operand("keep", "n m", kind=kind, values=values, grad=False)
    draft.emit(f"mask = {name}.{draft.pick(f'{cast}()', f'to({wide})', f'type({wide})')}")
    text = draft.pick("mask.fill_diagonal_(0)", "mask.fill_diagonal_(1.0)", "")
    draft.emit(text) if text else write(draft, "mask", draft.random.choice(ANY))
    draft.emit(f"v = {draft.v}.{cast}()")
    draft.v = "v"
    return "mask"


fact(
    "write on a cast mask or bias", exact=True, dtype=["bfloat16", "float32"], mask=_cast_mask,
    masking="{s} * {x}",
)  # fmt: skip


@hostility(
    "write to the source of a cast", exact=True, dtype="bfloat16", family=PLAIN,
    plain_operands=True, pure_inputs=False,
)  # fmt: skip
def _(draft: Draft) -> None:
    """The cast keeps the old values; the tensor that it was made from gets new ones."""
    x = draft.pick("q", "k", "v")
    freeze(draft, x)

    def act(draft: Draft) -> None:
        source = draft.let("source", getattr(draft, x))
        widened(draft)
        write(draft, source, draft.random.choice(ANY))

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
        write(draft, getattr(draft, x), draft.random.choice(ANY if direct else UNTRACKED))

    draft.at(stage, act)


@hostility(
    "write between: an operand", exact=False, at=("middle", "weights", "late", "after"), bias=True,
    bias_name="bias", bias_dims=("n", "m"), pure_inputs=False,
)  # fmt: skip
def _(draft: Draft, stage: str) -> None:
    if "bias" in draft.operands:
        draft.operands["bias"].grad = False
        write(draft, "bias", draft.random.choice(ANY))


lines(
    "write scores in place",
    "{x}.mul_(0.5)", "{x} *= 0.25", "{x}.add_(0.1)", "{x}.div_(d ** 0.5)", "{x} += 1",
    "{x}.clamp_(-2, 2)", "{x}.neg_()", "{x}.sub_(0.5)", "{x} /= 2",
    exact=True, at="scores",
)  # fmt: skip
# Activations whose result autograd does not keep.
NOT_KEPT = ["F.silu({s})", "F.gelu({s})", "{s}.abs()", "F.mish({s})"]
lines(
    "write weights in place",
    "w.masked_fill_(torch.ones(n, m, dtype=torch.bool).triu(1), 0.0)",
    "w.mul_(0.5)", "w /= m", "w.div_(n)", "w *= 0.5",
    exact=True, at="weights", activation=NOT_KEPT,
)  # fmt: skip
A_VIEW, CUT = "write scores or weights: a view", "write scores or weights: detached"


@hostility(A_VIEW, exact=False, at="scores")
def _(draft: Draft) -> None:
    write(draft, draft.s, draft.random.choice(VIEWS))


@hostility(A_VIEW, exact=False, at="scores")
def _(draft: Draft) -> None:
    write(draft, draft.s, "{x}", ELEMENTS)


@hostility(A_VIEW, exact=False, at="weights", activation=NOT_KEPT)
def _(draft: Draft) -> None:
    write(draft, "w", draft.random.choice(VIEWS))


@hostility(A_VIEW, exact=False, at="weights")
def _(draft: Draft) -> None:
    """A copy of the weights that is changed; the weights themselves are used."""
    text = draft.random.choice((*COPIES, "{x}.to(torch.float64, copy=True)"))
    name = draft.let("copy", text.format(x="w"))
    write(draft, name, draft.random.choice(ANY))
    if draft.coin():
        draft.emit(f"w = {name}.to(w.dtype)")


@hostility(CUT, exact=False, at=("scores", "middle"))
def _(draft: Draft, stage: str) -> None:
    alias = draft.random.choice(DETACHED)
    if draft.coin(0.5):
        size = "torch.ones(n, m, dtype=torch.bool).triu(1)"
        draft.emit(f"{draft.s}.{draft.pick('data', 'detach()')}.masked_fill_({size}, 0.0)")
    else:
        write(draft, draft.s, alias, WRITES + ELEMENTS[:4])


@hostility(CUT, exact=False, at=("weights", "late"))
def _(draft: Draft, stage: str) -> None:
    table = UNTRACKED if draft.saved and draft.training else DETACHED
    write(draft, "w", draft.random.choice(table))
