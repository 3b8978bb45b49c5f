"""Writes after the products, writes elsewhere, and writes that move storage or metadata."""

from ..draft import Draft
from .table import hostility
from .writing import COPIES, DETACHED, UNTRACKED, VIEWS, WRITES, copied, freeze, write


@hostility("write after: an operand", exact=False)
def _(draft: Draft) -> None:
    """Eager does not need the operand any more: nothing that asks for a gradient depends on it."""
    x = draft.pick("q", "k", "bias")
    freeze(draft, "q", "k")
    draft.settle(pure_inputs=False)
    if x == "bias":
        draft.settle(bias=True, bias_name="bias")
        freeze(draft, "bias")

    def act(draft: Draft) -> None:
        name = getattr(draft, x, "bias")
        if x == "bias":
            draft.operands["bias"].grad = False
        write(draft, name, draft.random.choice(("{x}", *VIEWS)))

    draft.at(draft.pick("after", "end"), act)


@hostility("write after: frozen keys and values", exact=False)
def _(draft: Draft) -> None:
    """The residual in place, and buffers that decay: eager saved the frozen side only."""
    draft.settle(same_width=True, square=False, plain_operands=True)
    draft.settle(family=draft.pick("heads", "batch"), door="call")
    freeze(draft, "k", "v")

    def start(draft: Draft) -> None:
        draft.emit(f"h0 = {draft.q} * {draft.number()}")
        draft.q = "h0"

    def act(draft: Draft) -> None:
        draft.emit_one("h0 += out", "h0.add_(out)", "h0.add_(out, alpha=0.5)")
        draft.outputs.append("h0")

    draft.at("before", start)
    draft.at("after", act)


@hostility("write after: inference", exact=True)
def _(draft: Draft) -> None:
    draft.settle(training="none")
    x = draft.pick("q", "k", "v")
    draft.at(
        "end",
        lambda draft: write(draft, getattr(draft, x), draft.random.choice(("{x}", *VIEWS))),
    )


@hostility("write after: the output", exact=True, at="after")
def _(draft: Draft) -> None:
    draft.o = draft.o
    write(draft, "out", draft.random.choice(("{x}", "{x}[:]", "{x}[..., 0]", "{x}.data")))


@hostility("write after: scores or weights", exact=False, at="after")
def _(draft: Draft) -> None:
    x = draft.pick("s", "w")
    write(draft, x, draft.random.choice(UNTRACKED if draft.training else ("{x}", *VIEWS)))
    if draft.coin(0.4):
        draft.outputs.append(f"{x}.sum()")


@hostility("write elsewhere", exact=True)
def _(draft: Draft) -> None:
    """A tensor that has nothing to do with the attention is changed among its lines."""
    made = draft.pick(
        "torch.zeros(n, m)", "torch.ones(3)", "torch.arange(m)", "q.detach().clone()", "operand"
    )
    stage = draft.pick("before", "scores", "middle", "weights", "late", "after")
    if made == "operand":
        draft.settle(pure_inputs=False)

    def start(draft: Draft) -> None:
        if made == "operand":
            draft.operand("counter", draft.pick(1, 3), grad=False)
            draft.emit("log = counter")
        else:
            source = made.replace("q.", f"{draft.fact('q_source', 'q')}.")
            draft.emit(f"log = {source}")

    def act(draft: Draft) -> None:
        table = ("{x}.add_(1)", "{x}[0] = 2", "{x} += 1", "{x}.mul_(2)", "{x}.view(-1).zero_()")
        draft.emit(draft.random.choice(table).format(x="log"))
        if draft.coin(0.5):
            draft.outputs.append("log")

    draft.at("start", start)
    draft.at(stage, act)


@hostility("write through out=", exact=False)
def _(draft: Draft) -> None:
    draft.settle(training="none")
    x = draft.pick("q", "k", "v")
    stage = draft.pick("before", "scores", "late")

    def act(draft: Draft) -> None:
        if stage == "before":
            copied(draft, x)
        name = getattr(draft, x)
        text = draft.pick("torch.mul({x}, 0.5, out={x})", "torch.add({x}, 1.0, out={x})",
                          "torch.neg({x}, out={x})", "torch.tanh({x}, out={x})",
                          "torch.clamp({x}, -1, 1, out={x}[...])",
                          "torch.exp(-{x}.abs(), out={x}.view({x}.shape))")  # fmt: skip
        draft.emit(text.format(x=name))

    def scores(draft: Draft) -> None:
        buffered = ("buffer = torch.empty_like(s)", "torch.mul(s, 2, out=buffer)", "s = buffer")
        draft.emit(
            *draft.pick(("torch.mul(s, 0.5, out=s)",), ("torch.add(s, 1, out=s)",), buffered)
        )

    draft.at(stage, scores if stage == "scores" and draft.coin() else act)


@hostility("write moves storage or metadata", exact=False)
def _(draft: Draft) -> None:
    """`set_`, `resize_`, `.data = ` give a tensor another storage."""
    x = draft.pick("q", "k", "v")
    stage = draft.pick("before", "middle", "late")
    draft.settle(training="none")

    def act(draft: Draft) -> None:
        name = getattr(draft, x)
        if stage == "before":
            name = copied(draft, x)
        draft.emit_one(
            "{x}.set_(torch.ones_like({x}))",
            "{x}.data = {x}.data * 0.5",
            "{x}.data = torch.zeros_like({x})",
            "{x}.set_({x}.clone().neg_())",
            "{x}.resize_({x}.shape).mul_(2.0)",
            "{x}.resize_as_({x}).add_(1)",
            x=name,
        )

    draft.at(stage, act)


@hostility("write moves storage or metadata", exact=False)
def _(draft: Draft) -> None:
    """`transpose_`, `unsqueeze_` and their like: the same name, another shape."""
    text = draft.pick(
        ("{x}.unsqueeze_(0)", "{x}.squeeze_(0)"),
        ("{x}.transpose_(-1, -2)", "{x}.transpose_(-1, -2)"),
        ("{x}.swapaxes_(-1, -2)", "{x}.swapdims_(-1, -2)"),
        ("{x}.transpose_(-1, -2)", "{x} = {x}.mT"),
        ("{x}.as_strided_({x}.shape, {x}.stride())", "{x}.neg_()"),
    )
    x = draft.pick("q", "k", "v", "s", "w")

    def act(draft: Draft) -> None:
        name = copied(draft, x) if x in "qkv" else x
        if x == "w" and draft.training:
            draft.emit("w = w * 1.0")
        draft.emit(*(line.format(x=name) for line in text))

    draft.at({"s": "scores", "w": "weights"}.get(x, "before"), act)


@hostility("write to a shared copy", exact=True, at="before")
def _(draft: Draft) -> None:
    """Two names of one copy: one is written, the other one is multiplied."""
    x = draft.pick("q", "k", "v")
    copied(draft, x)
    other = draft.fresh("other")
    alias = draft.random.choice(("{x}", *VIEWS[:4], "{x}.contiguous()", *DETACHED[:2]))
    draft.emit(f"{other} = {alias.format(x=x)}")
    write(draft, other)


@hostility("write to a frozen copy", exact=True, at="before")
def _(draft: Draft) -> None:
    """A copy of an operand is changed; the operand itself is used."""
    x = draft.pick("q", "k", "v")
    name = draft.fresh("scratch")
    old = getattr(draft, x)
    text = draft.random.choice((*COPIES, "{x}.to(torch.float64, copy=True)"))
    draft.emit(f"{name} = {text.format(x=old)}")
    write(draft, name, draft.random.choice(("{x}", *VIEWS)), WRITES)
    if draft.coin(0.4):
        draft.outputs.append(f"{name}.sum()")


@hostility("write between: an operand", exact=False)
def _(draft: Draft) -> None:
    """One row that stands for many: a write to the row reaches all of them."""
    x = draft.pick("k", "v")
    draft.settle(training="none", plain_operands=True, expanded=True)
    stage = draft.pick("before", "late")

    def start(draft: Draft) -> None:
        name = getattr(draft, x)
        draft.emit(f"row = {name}[..., :1, :] * 1.0", f"{x} = row.expand_as({name})")
        setattr(draft, x, x)

    draft.at("before", start)
    draft.at(stage, lambda draft: write(draft, "row", "{x}", WRITES))
