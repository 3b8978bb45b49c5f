"""Forms that are fused only where a graph is read further: sums, several values, product biases."""

from ..draft import Draft
from ..regions import score_shape
from .table import hostility


def _letters(draft: Draft) -> str:
    return "b" if draft.fact("family") == "batch" else "bh"


@hostility("weights scaled by an einsum", exact=True)
def _(draft: Draft) -> None:
    """A letter that one operand alone has: it is summed, and the sum scales the weights."""
    draft.settle(family=draft.pick("heads", "batch", "gqa", "bnhd"))

    def act(draft: Draft) -> None:
        outer, z = _letters(draft), draft.sizes
        dims = draft.pick(f"{outer}nx", "nx", "xn", f"{outer}xm", "mx", "x", f"x{outer}", "nxy")
        sizes = {"x": draft.pick(1, 2, 3), "y": 2, **z}
        x = draft.operand("other", *(sizes[letter] for letter in dims))
        stated = draft.pick("{x}", "{x}", "{x}.sin()", "{x}.detach()").format(x=x)
        scores = f"{outer}nm"
        name = draft.pick("s", "w") if draft.s == "s" and draft.w != "w" else draft.w
        pair = draft.pick((f"{scores},{dims}", f"{name}, {stated}"),
                          (f"{dims},{scores}", f"{stated}, {name}"))  # fmt: skip
        draft.emit(f'{name} = torch.einsum("{pair[0]}->{scores}", {pair[1]})')

    draft.at(draft.pick("weights", "late"), act)


@hostility("several values", exact=True)
def _(draft: Draft) -> None:
    """One set of weights, or one set of scores, multiplies values that differ."""
    draft.settle(family=draft.pick("heads", "batch"))
    scores = draft.coin(0.3)

    def act(draft: Draft) -> None:
        z, name = draft.sizes, draft.fresh("more")
        wide = draft.pick(z["e"], z["d"], 1, 3)
        shape = score_shape(draft)[:-2]
        u = draft.operand("u", *shape, z["m"], wide)
        u = draft.pick(u, u, f"({u} * 2)", f"{u}.cos()", draft.v, f"{draft.v}.flip(-1)")
        w = draft.pick("torch.sigmoid({s})", "{s}", "F.relu({s} * 0.5)").format(s=draft.s)
        w = w if scores else "w"
        text = draft.pick("{w} @ {u}", "torch.matmul({w}, {u})", "({u}.mT @ {w}.mT).mT",
                          'torch.einsum("...nm,...me->...ne", {w}, {u})')  # fmt: skip
        draft.emit(f"{name} = {text.format(w=w, u=u)}")
        draft.outputs.append(name)
        if draft.coin(0.15):
            draft.emit_one(f"{name}.mul_(2)", f"{name}.data.zero_()", f"{name} += 1")

    stage = draft.pick("late", "after")
    draft.at(stage, act)
    if stage == "late" and draft.coin(0.3):
        draft.at("late", lambda draft: _used(draft))
    if draft.coin(0.2):
        draft.at("after", act)


def _used(draft: Draft) -> None:
    """The second product reads the result of the first one."""
    draft.emit(f"w = w * {draft.outputs[-1]}.mean(-1, keepdim=True)")


@hostility("a bias by a product", exact=True)
def _(draft: Draft) -> None:
    """Shaw, Transformer-XL, a low rank, rows and columns: one product is the bias of another."""
    draft.settle(family=draft.pick("heads", "batch"))

    def act(draft: Draft) -> None:
        z, outer, q = draft.sizes, _letters(draft), draft.q
        kind = draft.pick("shaw", "plain", "low rank", "shifted", "gate")
        heads = score_shape(draft)[:-2]
        if kind == "shaw":
            e = draft.operand("e", z["n"], z["m"], z["d"])
            made = f'torch.einsum("{outer}nd,nmd->{outer}nm", {q}, {e})'
        elif kind == "low rank":
            left = draft.operand("left", *heads[-1:], z["n"], 2)
            right = draft.operand("right", *heads[-1:], 2, z["m"])
            made = f"({left} @ {right})"
        elif kind == "shifted":
            r = draft.operand("r", *heads, z["m"] + 1, z["d"])
            made = f"({q} @ {r}.mT)[..., 1:]"
        else:
            r = draft.operand("r", *heads, z["m"], z["d"])
            made = f"({q} @ {r}.mT)" if kind == "plain" else f"torch.tanh({r} @ {q}.mT).mT"
        if draft.coin(0.2):
            made = f"{made}.detach()"
        name = draft.fresh("by_product")
        draft.emit(f"{name} = {made}")
        text = draft.pick("{s} + {x}", "{x} + {s}", "{s} + {x} * 0.3", "{s} * {x}", "{s} - {x}")
        draft.emit(f"s = {text.format(s=draft.s, x=name)}")
        if draft.coin(0.15):
            draft.outputs.append(name)

    draft.at("middle", act)
