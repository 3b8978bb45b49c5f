"""Writes after the products, writes elsewhere, and writes that move storage or metadata."""

from ..draft import Draft
from .table import hostility, lines
from .writing import ANY, COPIES, DETACHED, UNTRACKED, VIEWS, WRITES, copied, freeze, write


@hostility("write after: an operand", exact=False, pure_inputs=False)
def _(draft: Draft) -> None:
    """Eager does not need the operand any more: nothing that asks for a gradient depends on it."""
    x = draft.pick("q", "k", "bias")
    freeze(draft, "q", "k")
    if x == "bias":
        draft.settle(bias=True, bias_name="bias")

    def act(draft: Draft) -> None:
        if x == "bias":
            draft.operands["bias"].grad = False
        write(draft, getattr(draft, x, "bias"), draft.random.choice(ANY))

    draft.at(draft.pick("after", "end"), act)


@hostility(
    "write after: frozen keys and values", exact=False, same_width=True, square=False,
    plain_operands=True, family=["heads", "batch"], door="call",
)  # fmt: skip
def _(draft: Draft) -> None:
    """The residual in place, and buffers that decay: eager saved the frozen side only."""
    freeze(draft, "k", "v")

    def start(draft: Draft) -> None:
        draft.emit(f"h0 = {draft.q} * {draft.number()}")
        draft.q = "h0"

    def act(draft: Draft) -> None:
        draft.emit_one("h0 += out", "h0.add_(out)", "h0.add_(out, alpha=0.5)")
        draft.outputs.append("h0")

    draft.at("before", start)
    draft.at("after", act)


@hostility("write after: inference", exact=True, at="end", training="none")
def _(draft: Draft) -> None:
    write(draft, getattr(draft, draft.pick("q", "k", "v")), draft.random.choice(ANY))


@hostility("write after: the output", exact=True, at="after")
def _(draft: Draft) -> None:
    write(draft, "out", draft.pick("{x}", "{x}[:]", "{x}[..., 0]", "{x}.data"))


@hostility("write after: scores or weights", exact=False, at="after")
def _(draft: Draft) -> None:
    x = draft.pick("s", "w")
    write(draft, x, draft.random.choice(UNTRACKED if draft.training else ANY))
    if draft.coin(0.4):
        draft.outputs.append(f"{x}.sum()")


@hostility("write elsewhere", exact=True)
def _(draft: Draft) -> None:
    """A tensor that has nothing to do with the attention is changed among its lines."""
    made = draft.pick(
        "torch.zeros(n, m)", "torch.ones(3)", "torch.arange(m)", "{q}.detach().clone()", "{c}"
    )
    if made == "{c}":
        draft.settle(pure_inputs=False)

    def start(draft: Draft) -> None:
        counter = (
            draft.operand("counter", draft.pick("1", "3"), grad=False) if made == "{c}" else ""
        )
        draft.emit(f"log = {made.format(c=counter, q=draft.q)}")

    def act(draft: Draft) -> None:
        draft.emit_one("{x}.add_(1)", "{x}[0] = 2", "{x} += 1", "{x}.mul_(2)",
                       "{x}.view(-1).zero_()", x="log")  # fmt: skip
        if draft.coin(0.5):
            draft.outputs.append("log")

    draft.at("before", start)
    draft.at(draft.pick("before", "scores", "middle", "weights", "late", "after"), act)


OUT = "write through out="


@hostility(OUT, exact=False, at=("before", "scores", "late"), training="none")
def _(draft: Draft, stage: str) -> None:
    x = draft.pick("q", "k", "v")
    name = copied(draft, x) if stage == "before" else getattr(draft, x)
    draft.emit_one("torch.mul({x}, 0.5, out={x})", "torch.add({x}, 1.0, out={x})",
                   "torch.neg({x}, out={x})", "torch.tanh({x}, out={x})",
                   "torch.clamp({x}, -1, 1, out={x}[...])",
                   "torch.exp(-{x}.abs(), out={x}.view({x}.shape))", x=name)  # fmt: skip


lines(
    OUT, "torch.mul({x}, 0.5, out={x})", "torch.add({x}, 1, out={x})",
    "s = torch.mul({x}, 2, out=torch.empty_like({x}))", exact=False, at="scores", training="none",
)  # fmt: skip
MOVES = "write moves storage or metadata"


@hostility(MOVES, exact=False, at=("before", "middle", "late"), training="none")
def _(draft: Draft, stage: str) -> None:
    """`set_`, `resize_`, `.data = ` give a tensor another storage."""
    x = draft.pick("q", "k", "v")
    draft.emit_one(
        "{x}.set_(torch.ones_like({x}))",
        "{x}.data = {x}.data * 0.5",
        "{x}.data = torch.zeros_like({x})",
        "{x}.set_({x}.clone().neg_())",
        "{x}.resize_({x}.shape).mul_(2.0)",
        "{x}.resize_as_({x}).add_(1)",
        x=copied(draft, x) if stage == "before" else getattr(draft, x),
    )


@hostility(MOVES, exact=False)
def _(draft: Draft) -> None:
    """`transpose_`, `unsqueeze_` and their like: the same name, another shape."""
    x = draft.pick("q", "k", "v", "s", "w")

    def act(draft: Draft) -> None:
        name = copied(draft, x) if x in "qkv" else x
        if x == "w" and draft.training:
            draft.emit("w = w * 1.0")
        text = draft.pick(
            ("{x}.unsqueeze_(0)", "{x}.squeeze_(0)"),
            ("{x}.transpose_(-1, -2)", "{x}.transpose_(-1, -2)"),
            ("{x}.swapaxes_(-1, -2)", "{x}.swapdims_(-1, -2)"),
            ("{x}.transpose_(-1, -2)", "{x} = {x}.mT"),
            ("{x}.as_strided_({x}.shape, {x}.stride())", "{x}.neg_()"),
        )
        draft.emit(*(line.format(x=name) for line in text))

    draft.at({"s": "scores", "w": "weights"}.get(x, "before"), act)


@hostility("write to a shared copy", exact=True, at="before")
def _(draft: Draft) -> None:
    """Two names of one copy: one is written, the other one is multiplied."""
    x = copied(draft, draft.pick("q", "k", "v"))
    alias = draft.random.choice(("{x}", *VIEWS[:4], "{x}.contiguous()", *DETACHED[:2]))
    write(draft, draft.let("other", alias.format(x=x)))


@hostility("write to a frozen copy", exact=True, at="before")
def _(draft: Draft) -> None:
    """A copy of an operand is changed; the operand itself is used."""
    text = draft.random.choice((*COPIES, "{x}.to(torch.float64, copy=True)"))
    name = draft.let("scratch", text.format(x=getattr(draft, draft.pick("q", "k", "v"))))
    write(draft, name, draft.random.choice(ANY), WRITES)
    if draft.coin(0.4):
        draft.outputs.append(f"{name}.sum()")


@hostility(
    "write between: an operand", exact=False, training="none", plain_operands=True, expanded=True
)
def _(draft: Draft) -> None:
    """One row that stands for many: a write to the row reaches all of them."""
    x = draft.pick("k", "v")

    def start(draft: Draft) -> None:
        name = getattr(draft, x)
        draft.emit(f"row = {name}[..., :1, :] * 1.0", f"{x} = row.expand_as({name})")
        setattr(draft, x, x)

    draft.at("before", start)
    draft.at(draft.pick("before", "late"), lambda draft: write(draft, "row", "{x}", WRITES))
