"""Forms that are fused only where a graph is read further: sums, several values, product biases."""

from ..draft import Draft
from .table import hostility


@hostility(
    "weights scaled by an einsum", exact=True, at=("weights", "late"),
    family=["heads", "batch", "gqa", "bnhd"],
)  # fmt: skip
def _(draft: Draft, stage: str) -> None:
    """A letter that one operand alone has: it is summed, and the sum scales the weights."""
    outer = "bh"[: len(draft.dims) - 2]
    dims = draft.pick(f"{outer}nx", "nx", "xn", f"{outer}xm", "mx", "x", f"x{outer}", "nxy")
    letters = {"x": str(draft.pick(1, 2, 3)), "y": "2", "n": "n", "m": "m"}
    letters |= dict(zip(outer, draft.dims))
    x = draft.operand("other", [letters[letter] for letter in dims])
    stated = draft.pick("{x}", "{x}", "{x}.sin()", "{x}.detach()").format(x=x)
    scores = f"{outer}nm"
    pair = draft.pick((f"{scores},{dims}", f"{draft.w}, {stated}"),
                      (f"{dims},{scores}", f"{stated}, {draft.w}"))  # fmt: skip
    draft.assign("weights", f'torch.einsum("{pair[0]}->{scores}", {pair[1]})')


@hostility("several values", exact=True, family=["heads", "batch"], training="none")
@hostility("several values", exact=True, family=["heads", "batch"])
def _(draft: Draft) -> None:
    """One set of weights, or one set of scores, multiplies values that differ."""
    scores = draft.coin(0.3)

    def act(draft: Draft) -> None:
        wide = draft.pick("e", "d", "1", "3")
        u = draft.operand("u", (*draft.dims[:-2], "m", wide))
        u = draft.pick(u, u, f"({u} * 2)", f"{u}.cos()", draft.v, f"{draft.v}.flip(-1)")
        w = draft.pick("torch.sigmoid({s})", "{s}", "F.relu({s} * 0.5)").format(s=draft.s)
        w = w if scores else "w"
        text = draft.pick("{w} @ {u}", "torch.matmul({w}, {u})", "({u}.mT @ {w}.mT).mT",
                          'torch.einsum("...nm,...me->...ne", {w}, {u})')  # fmt: skip
        name = draft.let("more", text.format(w=w, u=u))
        draft.outputs.append(name)
        if draft.coin(0.15):
            draft.emit_one(f"{name}.mul_(2)", f"{name}.data.zero_()", f"{name} += 1")

    stage = draft.pick("late", "after")
    draft.at(stage, act)
    if stage == "late" and draft.coin(0.3):
        draft.at("late", _used)
    if draft.coin(0.2):
        draft.at("after", act)


def _used(draft: Draft) -> None:
    """The second product reads the result of the first one."""
    draft.emit(f"w = w * {draft.outputs[-1]}.mean(-1, keepdim=True)")


BY_PRODUCT = {
    "shaw": 'torch.einsum("{o}nd,nmd->{o}nm", {q}, {x})',
    "low rank": "({x} @ {y})",
    "shifted": "({q} @ {x}.mT)[..., 1:]",
    "plain": "({q} @ {x}.mT)",
    "gate": "torch.tanh({x} @ {q}.mT).mT",
}


@hostility("a bias by a product", exact=True, at="middle", family=["heads", "batch"])
def _(draft: Draft) -> None:
    """Shaw, Transformer-XL, a low rank, rows and columns: one product is the bias of another."""
    kind = draft.random.choice(list(BY_PRODUCT))
    heads = draft.dims[:-2]
    dims = {"shaw": ("n", "m", "d"), "low rank": (*heads[-1:], "n", "2")}
    rows = "m+1" if kind == "shifted" else "m"
    x = draft.operand("r", dims.get(kind, (*heads, rows, "d")))
    y = draft.operand("right", (*heads[-1:], "2", "m")) if kind == "low rank" else ""
    made = BY_PRODUCT[kind].format(o="bh"[: len(heads)], q=draft.q, x=x, y=y)
    name = draft.let("by_product", f"{made}.detach()" if draft.coin(0.2) else made)
    text = draft.pick("{s} + {x}", "{x} + {s}", "{s} + {x} * 0.3", "{s} * {x}", "{s} - {x}")
    draft.assign("middle", text.format(s=draft.s, x=name))
    if draft.coin(0.15):
        draft.outputs.append(name)
