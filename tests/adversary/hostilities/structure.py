"""Dead code, second attentions, scores that are seen elsewhere, sizes, aliasing inputs, numbers."""

from ..decoys import DECOYS, LETTERS
from ..draft import Draft
from .table import fact, hostility, lines
from .writing import VIEWS, write

MIDDLE = ("middle", "weights", "late")


@hostility("dead attention", exact=True, at=("before", "scores", "weights", "after"))
def _(draft: Draft, stage: str) -> None:
    draft.emit_one(
        "unused = torch.relu({q} @ {k}.mT) @ {k}",
        "_ = F.silu({k} @ {k}.mT) @ {v}",
        "unused = torch.tanh({q} @ {k}.mT).sum()",
        "unused = ({q} @ {k}.mT).softmax(-1)",
        **_operands(draft),
    )


def _operands(draft: Draft) -> dict[str, str]:
    return {"q": draft.q, "k": draft.k, "v": draft.v}


@hostility(
    "dead attention from the scores",
    exact=True,
    at=(*MIDDLE, "after"),
    family=["heads", "batch", "gqa", "bnhd"],
)
def _(draft: Draft, stage: str) -> None:
    x = draft.s if stage == "middle" or draft.coin() else "w"
    draft.emit_one(
        "unused = torch.relu({x}) @ {v}",
        "unused = F.relu(torch.tanh({x}).mT @ torch.tanh({x})) @ {v}",
        "unused = F.relu(torch.tanh({x}) @ torch.tanh({x}).mT) @ torch.tanh({x})",
        "unused = F.silu({x}) @ ({x}.mT @ {q})",
        "unused = {x}.sum()",
        "unused = {x}.softmax(-1) @ {v}",
        "unused = torch.relu(({x} @ {v}) @ {v}.mT) @ {v}",
        "unused = {x}.detach().mean().sqrt()",
        x=x,
        **_operands(draft),
    )


@hostility(
    "second attention of its own", exact=True, at=("before", "before", "after", "end"),
    family=["heads", "batch", "gqa", "bnhd"],
)  # fmt: skip
def _(draft: Draft, stage: str) -> None:
    activation = draft.pick("F.silu", "torch.relu", "torch.sigmoid", "F.gelu")
    draft.emit(f"more = {activation}({draft.q} @ {draft.k}.mT) @ {draft.v}")
    draft.outputs.append("more")


@hostility(
    "scores used twice", exact=False, at=("scores", *MIDDLE, "after"),
    family=["heads", "batch", "gqa", "bnhd"],
)  # fmt: skip
def _(draft: Draft, stage: str) -> None:
    x = draft.s if stage in ("scores", "middle") else draft.pick(draft.s, "w")
    draft.emit_one(
        f"more = torch.tanh({x}) @ {draft.v}",
        f"more = {x} @ {draft.v}",
        f"more = torch.sigmoid({x} * 0.5) @ {draft.v}.flip(-1)",
        f"more = {x}.mT @ {draft.q}",
    )
    draft.outputs.append("more")


@hostility("scores seen elsewhere", exact=False, at=("scores", *MIDDLE))
def _(draft: Draft, stage: str) -> None:
    seen = draft.pick("", ".sum()", ".detach().mean()", ".abs().amax()", ".norm()", "[..., 0]",
                      ".shape[-1]", ".dtype", ".size(0)", ".argmax(-1)", ".requires_grad",
                      ".mean(-1)", ".detach()", "[..., :1]", ".exp().sum(-1)")  # fmt: skip
    name = draft.let("seen", draft.subject(stage) + seen)
    if "dtype" not in seen:
        draft.outputs.append(name)


@hostility("divided by sums", exact=False, at=MIDDLE)
def _(draft: Draft, stage: str) -> None:
    """Of rows, which may be fused, or of columns."""
    x = draft.subject(stage)
    text = draft.pick(
        "{s} / ({s}.abs().sum({x}, keepdim=True) + 1e-3)",
        "{s} / {s}.abs().sum({x}, keepdim=True).clamp(min=0.1)",
        "{s} / {s}.detach().abs().sum({x}, keepdim=True).clamp(min=1)",
        "F.relu({s}) / (F.relu({s}).sum(dim={x}, keepdim=True) + 0.1)",
        "{s} / {s}.exp().sum({x}, True).clamp(min=1)",
        "{s}.exp() / {s}.exp().sum({x}, keepdim=True)",
    )
    draft.assign(stage, text.format(s=x, x=draft.pick("-1", "-1", "-2")))


WHOLE = {"exact": False, "alone": True, "family": "whole"}
fact("scores depend on each other", exact=False, decoy=True, alone=True, mixes="middle")
fact("weights depend on each other", exact=False, decoy=True, alone=True, mixes="weights")
fact("no attention", decoy=True, whole=DECOYS, **WHOLE)
fact("attention in the letter only", whole=LETTERS, **WHOLE)


@hostility("chained attention", exact=True, at="after", same_width=True, family=["heads", "batch"])
def _(draft: Draft) -> None:
    activation = draft.pick("F.silu", "torch.relu", "torch.tanh")
    draft.emit(f"out = {activation}(out @ {draft.k}.mT * 0.3) @ {draft.v}")


lines(
    "randomness between",
    "w = F.dropout(w, 0.3)",
    "w = w * torch.rand_like(w)",
    "w = w + torch.randn(n, m).to(w)",
    "w = w * torch.bernoulli(torch.full((n, m), 0.5)).to(w)",
    "w = w * torch.bernoulli(w.detach().sigmoid())",
    "w = F.dropout(w, 0.4, training=False)",
    "w = F.alpha_dropout(w, 0.3, True)",
    "torch.rand(3)",
    exact=False, at="weights",
)  # fmt: skip
lines(
    "dropout on the weights",
    "w = F.dropout(w, 0.3)",
    "F.dropout(w, 0.3, True, True)",
    "w = F.dropout(F.dropout(w, 0.3), 0.2)",
    "w = torch.dropout(w, 0.5, True)",
    "w = w * F.dropout(torch.ones_like(w), 0.25)",
    "w = F.dropout(w, 0.4) - w * 0.1",
    "w = torch.utils.checkpoint.checkpoint(lambda x: F.dropout(x, 0.3), w, use_reentrant=False)",
    exact=False, at="weights",
)  # fmt: skip
lines(
    "dropout that does nothing",
    "w = F.dropout(w, 0.0)",
    "w = F.dropout(w, 0.5, training=False)",
    "w = F.dropout(w, p=0.0, training=True)",
    exact=True, at="weights",
)  # fmt: skip
lines(
    "no-operations between",
    "w = w.contiguous()",
    "w = w.to(w.dtype)",
    "w = w.view(w.shape)",
    "w = w.clone()",
    "w = +w",
    "w = w.expand_as(w)",
    "w = w[...]",
    "w = w.type_as(w)",
    "w = w.reshape(w.shape)",
    "w = w.unsqueeze(0)[0]",
    "w = w.mT.mT",
    "w = w.transpose(-1, -2).contiguous().mT",
    exact=True, at="weights",
)  # fmt: skip


@hostility("sizes of one", exact=True)
def _(draft: Draft) -> None:
    names = draft.random.sample(("b", "h", "n", "m", "d", "e"), draft.pick(1, 2, 3))
    draft.settle(sizes=dict.fromkeys(names, 1))
    _dense(draft)


@hostility("sizes of zero", exact=False, plain_operands=True)
def _(draft: Draft) -> None:
    draft.settle(sizes={draft.pick("b", "n", "m", "m", "d", "e"): 0})
    draft.settle(first=draft.pick("@ mT", "matmul", "einsum"), second=draft.pick("@", "einsum"))
    _dense(draft)


def _dense(draft: Draft) -> None:
    if draft.settled.get("family") == "jagged":
        draft.settle(family="heads")


@hostility("symbolic sizes", exact=True, family=["heads", "batch"])
def _(draft: Draft) -> None:
    """Rows and keys vary from call to call; the program is compiled once."""
    draft.settle(sizes={"n": draft.pick(3, 4, 5), "m": draft.pick(3, 4, 6), "b": 2, "h": 2})
    names = draft.pick(("n", "m"), ("n",), ("m",), ("b",), ("b", "n", "m"))
    draft.settle(grown=(names, draft.pick(1, 2, 3)))


SQUARE = {
    "square": True,
    "same_width": True,
    "plain_operands": True,
    "family": ["heads", "batch", "bnhd"],
}


@hostility("inputs: one tensor twice", exact=True, at="end", **SQUARE)
def _(draft: Draft) -> None:
    """f(x, x, v), f(q, x, x), f(x, x, x): the caller passes one tensor under several names."""
    copy, source = draft.pick(("k", "q"), ("v", "k"), ("v", "q"))
    operand = draft.operands[copy]
    operand.base, operand.view, operand.grad = source, source, False


@hostility("inputs: views of one base", exact=True, at="end", **SQUARE)
def _(draft: Draft) -> None:
    """Slices of one projection, as the caller of a fused QKV layer passes them."""
    form = draft.pick("base.chunk(3, -1)[{i}]", "base[..., {i} * {d}:({i} + 1) * {d}]",
                      "base.unflatten(-1, (3, {d})).select(-2, {i})")  # fmt: skip
    *outer, width = draft.operands["q"].dims
    rest = dict(draft.operands)
    draft.operands.clear()
    draft.operand("base", [*outer, f"3*{width}"], grad=rest["q"].grad, place="base")
    draft.operands.update(rest)
    for i, name in enumerate("qkv"):
        operand = draft.operands[name]
        operand.base, operand.grad = "base", False
        operand.view = form.format(i=i, d=draft.sizes[width])


@hostility(
    "inputs: overlapping and written", exact=False, expanded=False, training="none",
    **SQUARE | {"family": ["heads", "batch"]},
)  # fmt: skip
def _(draft: Draft) -> None:
    """The caller passes views of one storage, and the program writes to one of them."""
    same = draft.pick(("k", "q"), ("v", "k"), ("v", "q"), ("q", "v"))
    form = draft.pick("{x}", "{x}[:]", "{x}.view({x}.shape)", "{x}.detach()", "{x}.flip(0)",
                      "{x}.as_strided({x}.shape, {x}.stride())")  # fmt: skip
    stage = draft.pick("before", "scores", "middle", "late", "after")

    def act(draft: Draft) -> None:
        x = getattr(draft, draft.random.choice(same))
        write(draft, x, draft.random.choice(("{x}", *VIEWS)))

    def alias(draft: Draft) -> None:
        copy, source = (draft.operands[x] for x in same)
        copy.base, copy.view = source.name, form.format(x=source.name)
        draft.operands = dict(sorted(draft.operands.items(), key=lambda item: bool(item[1].base)))

    draft.at(stage, act)
    draft.at("end", alias)


@hostility("a number read from a tensor", exact=False, capture_scalars=True)
def _(draft: Draft) -> None:
    """`.item()`, by scalar capture, of a tensor that is written later, or asks for gradients."""
    draft.settled["plain_operands"] = True
    changed = draft.coin(0.6)
    asks = not changed and draft.coin(0.4)

    def act(draft: Draft) -> None:
        kind = draft.pick("float", "float", "int64", "float32")
        values = "ints 1 4" if kind == "int64" else "positive"
        c = draft.operand("c", kind=kind, values=values, grad=asks and kind == "float")
        draft.emit_one(f"number = {c}.item()", f"number = float({c})", f"number = {c}.tolist()")
        if changed:
            draft.emit_one(f"{c}.add_(5)", f"{c}.mul_(3)", f"{c}.zero_()", f"{c}.data.fill_(7)")

    def use(draft: Draft) -> None:
        stem = draft.pick("{s} * number", "{s} + number", "{s} / (number + 1)", "{s}.mul(number)")
        draft.assign("middle", stem.format(s=draft.s))

    draft.at(draft.pick("start", "before", "scores"), act)
    draft.at("middle", use)


@hostility("a closure and a global", exact=True)
def _(draft: Draft) -> None:
    draft.settle(
        preamble=f"TABLE = {{'scale': {draft.number()}}}\nWEIGHTS = torch.linspace(0.5, 1.5, 64)\n"
    )

    def act(draft: Draft) -> None:
        draft.emit(
            *draft.pick(
                (f"s = {draft.s} * TABLE['scale']",),
                (f"s = {draft.s} * WEIGHTS[:m].to({draft.s}.dtype)",),
                ("act = lambda x, c=0.5: x * c", f"s = act({draft.s})"),
            )
        )
        draft.s = "s"

    draft.at("middle", act)
