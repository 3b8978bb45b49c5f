"""Dead code, second attentions, scores that are seen elsewhere, sizes, aliasing inputs, numbers."""

from ..draft import Draft
from .table import hostility
from .writing import VIEWS, freeze, write


@hostility("dead attention", exact=True)
def _(draft: Draft) -> None:
    stage = draft.pick("before", "scores", "weights", "after")
    text = draft.pick(
        "unused = torch.relu({q} @ {k}.mT) @ {k}",
        "_ = F.silu({k} @ {k}.mT) @ {v}",
        "unused = torch.tanh({q} @ {k}.mT).sum()",
        "unused = ({q} @ {k}.mT).softmax(-1)",
    )

    def act(draft: Draft) -> None:
        draft.emit(text.format(q=draft.q, k=draft.k, v=draft.v))

    draft.at(stage, act)


@hostility("dead attention from the scores", exact=True)
def _(draft: Draft) -> None:
    stage = draft.pick("middle", "weights", "late", "after")

    def act(draft: Draft) -> None:
        x = draft.s if stage == "middle" or draft.coin() else "w"
        draft.emit(
            *draft.pick(
                (f"unused = torch.relu({x}) @ {draft.v}",),
                (f"seen = torch.tanh({x})", f"unused = F.relu(seen.mT @ seen) @ {draft.v}"),
                (f"seen = torch.tanh({x})", "unused = F.relu(seen @ seen.mT) @ seen"),
                (f"unused = F.silu({x}) @ ({x}.mT @ {draft.q})",),
                (f"unused = {x}.sum()",),
                (f"unused = {x}.softmax(-1) @ {draft.v}",),
                (f"unused = torch.relu(({x} @ {draft.v}) @ {draft.v}.mT) @ {draft.v}",),
                (f"unused = {x}.detach().mean().sqrt()",),
            )
        )

    draft.at(stage, act)


@hostility("second attention of its own", exact=True)
def _(draft: Draft) -> None:
    def act(draft: Draft) -> None:
        activation = draft.pick("F.silu", "torch.relu", "torch.sigmoid", "F.gelu")
        draft.emit(f"more = {activation}({draft.q} @ {draft.k}.mT) @ {draft.v}")
        draft.outputs.append("more")

    draft.at(draft.pick("before", "after", "end") if draft.coin() else "before", act)


@hostility("scores used twice", exact=False)
def _(draft: Draft) -> None:
    stage = draft.pick("scores", "middle", "weights", "late", "after")

    def act(draft: Draft) -> None:
        x = draft.s if stage in ("scores", "middle") else draft.pick(draft.s, "w")
        draft.emit_one(
            f"more = torch.tanh({x}) @ {draft.v}",
            f"more = {x} @ {draft.v}",
            f"more = torch.sigmoid({x} * 0.5) @ {draft.v}.flip(-1)",
            f"more = {x}.mT @ {draft.q}",
        )
        draft.outputs.append("more")

    draft.at(stage, act)


@hostility("scores used twice", exact=False)
def _(draft: Draft) -> None:
    stage = draft.pick("scores", "middle", "weights", "late")

    def act(draft: Draft) -> None:
        x = draft.s if stage in ("scores", "middle") else "w"
        seen = draft.pick(f"{x}.sum()", f"{x}.detach().mean()", f"{x}", f"{x}.abs().amax()",
                          f"{x}.norm()", f"{x}[..., 0]", f"{x}.shape[-1]", f"{x}.dtype",
                          f"{x}.size(0)", f"{x}.argmax(-1)", f"{x}.requires_grad")  # fmt: skip
        name = draft.fresh("seen")
        draft.emit(f"{name} = {seen}")
        if "dtype" not in seen:
            draft.outputs.append(name)

    draft.at(stage, act)


@hostility("weights depend on each other", exact=False, at="weights")
def _(draft: Draft) -> None:
    draft.emit_one(
        "w = w / w.abs().sum(-1, keepdim=True).clamp(min=0.1)",
        "w = w.softmax(-1)",
        "w = w - w.mean(-1, keepdim=True)",
        "w = w.cumsum(-1)",
        "w = F.normalize(w, dim=-1)",
        "w = w.flip(-1)",
        "w = w.roll(1, -1)",
        "w = w / w.detach().abs().amax().clamp(min=0.1)",
        "w = F.layer_norm(w, (m,))",
        "w = w.sort(-1).values",
        "w = w.mT.mT + w.sum()",
    )


@hostility("chained attention", exact=True)
def _(draft: Draft) -> None:
    draft.settle(same_width=True, family=draft.pick("heads", "batch"))

    def act(draft: Draft) -> None:
        activation = draft.pick("F.silu", "torch.relu", "torch.tanh")
        draft.emit(f"out = {activation}(out @ {draft.k}.mT * 0.3) @ {draft.v}")

    draft.at("after", act)


@hostility("randomness between", exact=False)
def _(draft: Draft) -> None:
    text = draft.pick(
        "w = F.dropout(w, 0.3)",
        "w = w * torch.rand_like(w)",
        "w = w + torch.randn(n, m).to(w)",
        "w = w * torch.bernoulli(torch.full((n, m), 0.5)).to(w)",
        "w = F.dropout(w, 0.4, training=False)",
        "w = F.alpha_dropout(w, 0.3, True)",
        "torch.rand(3)",
    )
    draft.at("weights", lambda draft: draft.emit(text))


@hostility("dropout that does nothing", exact=True)
def _(draft: Draft) -> None:
    text = draft.pick("w = F.dropout(w, 0.0)", "w = F.dropout(w, 0.5, training=False)",
                      "w = F.dropout(w, p=0.0, training=True)")  # fmt: skip
    draft.at("weights", lambda draft: draft.emit(text))


@hostility("no-operations between", exact=True, at="weights")
def _(draft: Draft) -> None:
    draft.emit_one(
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
    )


@hostility("sizes of one", exact=True)
def _(draft: Draft) -> None:
    names = draft.random.sample(("b", "h", "n", "m", "d", "e"), draft.pick(1, 2, 3))
    sizes = dict.fromkeys(names, 1)
    if "h" in sizes:
        sizes["g"] = 1
    draft.settle(sizes=sizes)
    _dense(draft)


@hostility("sizes of zero", exact=False)
def _(draft: Draft) -> None:
    draft.settle(sizes={draft.pick("b", "n", "m", "m", "d", "e"): 0}, plain_operands=True)
    draft.settle(first=draft.pick("@ mT", "matmul", "einsum"), second=draft.pick("@", "einsum"))
    _dense(draft)


def _dense(draft: Draft) -> None:
    if draft.settled.get("family") == "jagged":
        draft.settle(family="heads")


@hostility("symbolic sizes", exact=True)
def _(draft: Draft) -> None:
    """Rows and keys vary from call to call; the program is compiled once."""
    draft.settle(dynamic_by=draft.pick(1, 2, 3), family=draft.pick("heads", "batch"))
    draft.settle(sizes={"n": draft.pick(3, 4, 5), "m": draft.pick(3, 4, 6), "b": 2, "h": 2})
    names = draft.pick(("n", "m"), ("n",), ("m",), ("b",), ("b", "n", "m"))
    draft.at("end", lambda draft: _mark(draft, names))


def _mark(draft: Draft, names: tuple[str, ...]) -> None:
    """Which axes vary: known by name for q, k, v; by size for what else depends on them."""
    z = draft.sizes
    if "n" in names and z["n"] == z["m"]:
        names = (*names, "m")
    if "m" in names and z["n"] == z["m"]:
        names = (*names, "n")
    ambiguous = {z[x] for x in ("h", "d", "e")}
    for operand in draft.operands.values():
        axes = []
        for axis, size in enumerate(operand.shape):
            width = operand.name in ("q", "k", "v") and axis == len(operand.shape) - 1
            head = operand.name in ("q", "k", "v") and axis == 1 and len(operand.shape) == 4
            rows = operand.name in ("q", "k", "v") and axis == len(operand.shape) - 2
            if width or head:
                continue
            if axis == 0 and len(operand.shape) > 2:
                letter = "b" if size == z["b"] else ""
            elif rows:
                letter = "n" if operand.name == "q" else "m"
            elif axis == len(operand.shape) - 1:
                letter = "b" if operand.name == "lens" else "m" if size == z["m"] else ""
                letter = "n" if size == z["n"] and operand.name.startswith("rows") else letter
            else:
                letter = "n" if size == z["n"] and axis == len(operand.shape) - 2 else ""
            if letter in names and letter and (rows or size not in ambiguous or size > 1):
                axes.append(axis)
        operand.dynamic = tuple(axes)


@hostility("inputs: one tensor twice", exact=True)
def _(draft: Draft) -> None:
    """f(x, x, v), f(q, x, x), f(x, x, x): the caller passes one tensor under several names."""
    draft.settle(square=True, same_width=True, family=draft.pick("heads", "batch", "bnhd"))
    same = draft.pick(("k", "q"), ("v", "k"), ("v", "q"))

    def act(draft: Draft) -> None:
        copy, source = (draft.operands[x] for x in same)
        copy.base, copy.view, copy.grad = source.name, source.name, False

    draft.at("end", act)


@hostility("inputs: views of one base", exact=True)
def _(draft: Draft) -> None:
    """Slices of one projection, as the caller of a fused QKV layer passes them."""
    draft.settle(square=True, same_width=True, family=draft.pick("heads", "batch", "bnhd"))
    form = draft.pick("base.chunk(3, -1)[{i}]", "base[..., {i} * {d}:({i} + 1) * {d}]",
                      "base.unflatten(-1, (3, {d})).select(-2, {i})")  # fmt: skip
    draft.settle(based=form)
    draft.at("end", _base)


def _base(draft: Draft) -> None:
    shape = draft.operands["q"].shape
    asks = draft.operands["q"].grad
    width = shape[-1]
    rest = dict(draft.operands)
    draft.operands.clear()
    draft.operand("base", *shape[:-1], 3 * width, grad=asks, place="base")
    draft.operands.update(rest)
    for i, name in enumerate("qkv"):
        operand = draft.operands[name]
        operand.base, operand.grad = "base", False
        operand.view = draft.fact("based").format(i=i, d=width)


@hostility("inputs: overlapping and written", exact=False)
def _(draft: Draft) -> None:
    """The caller passes views of one storage, and the program writes to one of them."""
    draft.settle(training="none", square=True, same_width=True, plain_operands=True)
    draft.settle(expanded=False)
    draft.settle(family=draft.pick("heads", "batch"))
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


@hostility("a number read from a tensor", exact=False)
def _(draft: Draft) -> None:
    """`.item()`, by scalar capture, of a tensor that is written later, or asks for gradients."""
    draft.settle(capture_scalars=True)
    draft.settled["plain_operands"] = True
    asks = draft.coin(0.4)
    changed = draft.coin(0.6)
    if changed:
        asks = False
    where = draft.pick("start", "before", "scores")

    def act(draft: Draft) -> None:
        kind = draft.pick("float", "float", "int64", "float32")
        values = "ints 1 4" if kind == "int64" else "positive"
        c = draft.operand("c", kind=kind, values=values, grad=asks and kind == "float")
        draft.emit_one(f"number = {c}.item()", f"number = float({c})", f"number = {c}.tolist()")
        if changed:
            draft.emit_one(f"{c}.add_(5)", f"{c}.mul_(3)", f"{c}.zero_()", f"{c}.data.fill_(7)")

    def use(draft: Draft) -> None:
        stem = draft.pick("{s} * number", "{s} + number", "{s} / (number + 1)", "{s}.mul(number)")
        draft.emit(f"s = {stem.format(s=draft.s)}")

    draft.at(where, act)
    draft.at("middle", use)


@hostility("a closure and a global", exact=True)
def _(draft: Draft) -> None:
    draft.settle(
        preamble=f"TABLE = {{'scale': {draft.number()}}}\nWEIGHTS = torch.linspace(0.5, 1.5, 64)\n"
    )
    freeze(draft)

    def act(draft: Draft) -> None:
        draft.emit(
            draft.pick(
                "s = s * TABLE['scale']",
                "s = s * WEIGHTS[:m].to(s.dtype)",
                "act = lambda x, c=0.5: x * c\n    s = act(s)",
            ).replace("\n    ", "\n" + "    " * draft.depth)
        )

    draft.at("middle", act)
