"""Gradient modes, detaching in each spelling, hooks, tensors that ask for gradients half-way."""

from ..draft import Draft
from .table import hostility
from .writing import freeze

NO_GRAD = (
    "with torch.no_grad():",
    "with torch.set_grad_enabled(False):",
    "with torch.autograd.grad_mode.no_grad():",
)


@hostility("no_grad over all", exact=True)
def _(draft: Draft) -> None:
    draft.settle(island=draft.random.choice(NO_GRAD), wrap=None)


@hostility("enable_grad over all", exact=True)
def _(draft: Draft) -> None:
    draft.settle(
        island=draft.pick("with torch.enable_grad():", "with torch.set_grad_enabled(True):")
    )


@hostility("no_grad between", exact=False)
def _(draft: Draft) -> None:
    draft.settle(training="all")
    stage = draft.pick("scores", "middle", "weights", "late")

    def act(draft: Draft) -> None:
        x = {"scores": draft.s, "middle": draft.s}.get(stage, "w")
        with draft.inside(draft.random.choice(NO_GRAD)):
            draft.emit(f"{x} = {x} {draft.pick('* 0.5', '+ 0.1', '/ 2')}")

    draft.at(stage, act)


@hostility("no_grad between", exact=False)
def _(draft: Draft) -> None:
    draft.settle(**{draft.pick("first_island", "second_island"): draft.random.choice(NO_GRAD)})


@hostility("grad mode switched on or off inside", exact=False)
def _(draft: Draft) -> None:
    draft.settle(island=draft.random.choice(NO_GRAD), training="all")
    stage = draft.pick("scores", "weights")

    def act(draft: Draft) -> None:
        x = draft.s if stage == "scores" else "w"
        with draft.inside("with torch.enable_grad():"):
            draft.emit(f"{x} = {x} * {draft.number()}")
            if draft.coin(0.5):
                draft.emit(f"{x} = {x} + q.sum()")

    draft.at(stage, act)


@hostility("grad mode switched on or off inside", exact=False)
def _(draft: Draft) -> None:
    begin = draft.pick("before", "scores", "middle")
    end = draft.pick("weights", "late", "after")
    draft.at(begin, lambda draft: draft.emit("torch.set_grad_enabled(False)"))
    draft.at(end, lambda draft: draft.emit("torch.set_grad_enabled(True)"))


@hostility("inference_mode", exact=False)
def _(draft: Draft) -> None:
    draft.settle(training="none")
    if draft.coin():
        draft.settle(island="with torch.inference_mode():")
        return

    def act(draft: Draft) -> None:
        with draft.inside("with torch.inference_mode():"):
            draft.emit("w = w * 0.5")

    draft.at("weights", act)


DETACHING = (
    "{x}.detach()",
    "torch.detach({x})",
    "{x}.data",
    "{x}.clone().detach()",
    "{x}.detach().clone()",
    "torch.Tensor.detach({x})",
    "({x}.detach() * 1.0)",
    "({x}.new_zeros(()) + {x}.detach())",
)


@hostility("detach an operand", exact=True, at="before")
def _(draft: Draft) -> None:
    for x in draft.random.sample("qkv", draft.pick(1, 1, 2)):
        old = getattr(draft, x)
        draft.emit(f"{x} = {draft.random.choice(DETACHING).format(x=old)}")
        setattr(draft, x, x)


@hostility("detach scores or weights", exact=False)
def _(draft: Draft) -> None:
    stage = draft.pick("scores", "middle", "weights", "late")

    def act(draft: Draft) -> None:
        x = draft.s if stage in ("scores", "middle") else "w"
        text = draft.random.choice(DETACHING).format(x=x)
        forms = (
            f"{x} = {text}",
            f"{x} = {x} - {text} * 0.5",
            f"{x} = {x} * ({text} > 0)",
            f"{x} = {x} / (1 + {text}.abs())",
            f"{x} = {text} + ({x} - {x}.detach())",
        )
        draft.emit(draft.random.choice(forms))

    draft.at(stage, act)


@hostility("detach_", exact=False)
def _(draft: Draft) -> None:
    stage = draft.pick("scores", "middle", "weights", "late")
    draft.settle(training="all", wrap=None)
    if stage in ("scores", "middle"):
        draft.settle(first="@ mT")  # a view cannot be detached in place
    draft.settled["masking"] = "{w} * {x}"

    def act(draft: Draft) -> None:
        x = draft.s if stage in ("scores", "middle") else "w"
        draft.emit_one("{x}.detach_()", "torch.detach_({x})", "{x} = {x}.detach_()", x=x)

    draft.at(stage, act)


@hostility("detach_", exact=False, at="before")
def _(draft: Draft) -> None:
    x = draft.pick("q", "k", "v")
    draft.emit(f"{x} = {getattr(draft, x)} * 1.0", f"{x}.detach_()")
    setattr(draft, x, x)


@hostility("hooks and retain_grad", exact=False)
def _(draft: Draft) -> None:
    draft.settle(training="all")
    stage = draft.pick("scores", "weights", "before", "after")

    def act(draft: Draft) -> None:
        x = {"scores": draft.s, "weights": "w", "after": "out"}.get(stage)
        if x is None:
            x = draft.pick("q", "k", "v")
            draft.emit(f"{x} = {getattr(draft, x)} * 1.0")
            setattr(draft, x, x)
        hook = draft.pick("lambda g: g * 0.5", "lambda g: g.clamp(-0.1, 0.1)", "lambda g: None")
        guard = "" if draft.coin(0.5) else f"if {x}.requires_grad: "
        draft.emit(f"{guard}{x}.register_hook({hook})")

    draft.at(stage, act)


@hostility("hooks and retain_grad", exact=False)
def _(draft: Draft) -> None:
    draft.settle(training="all")
    stage = draft.pick("scores", "weights", "after")

    def act(draft: Draft) -> None:
        x = {"scores": draft.s, "weights": "w"}.get(stage, "out")
        draft.emit(f"{x}.retain_grad()")
        if draft.coin(0.3):
            draft.outputs.append(x)

    draft.at(stage, act)


@hostility("requires_grad_ half-way", exact=False)
def _(draft: Draft) -> None:
    text = draft.pick(
        "{x} = {x}.detach().requires_grad_()",
        "{x} = {x}.clone().detach().requires_grad_(True)",
        "{x} = {x}.detach_().requires_grad_(False)",
        "{x} = torch.nn.Parameter({x}.detach())",
        "{x} = {x}.detach()\n    {x}.requires_grad = True",
    )
    stage = draft.pick("before", "middle", "late")

    def act(draft: Draft) -> None:
        x = {"middle": draft.s, "late": "w"}.get(stage)
        if x is None:
            x = draft.pick("q", "k", "v")
            draft.emit(f"{x} = {getattr(draft, x)} * 1.0")
            setattr(draft, x, x)
        draft.emit(*text.format(x=x).split("\n    "))

    draft.at(stage, act)


@hostility("frozen operands", exact=True)
def _(draft: Draft) -> None:
    """Some operands ask for gradients and some do not."""
    names = draft.random.sample(("q", "k", "v"), draft.pick(1, 2))
    freeze(draft, *names)
    draft.settle(training="all")


@hostility("autograd.Function", exact=False)
def _(draft: Draft) -> None:
    draft.settle(
        wrap=None,
        preamble="""
class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 0.5

    @staticmethod
    def backward(ctx, grad):
        return grad * 3.0

""",
    )
    stage = draft.pick("scores", "weights", "before")

    def act(draft: Draft) -> None:
        x = {"scores": draft.s, "weights": "w"}.get(stage)
        if x is None:
            draft.emit(f"k = {draft.k} * 1.0")
            draft.k = x = "k"
        draft.emit(f"{x} = Half.apply({x})")

    draft.at(stage, act)


@hostility("straight-through estimate", exact=False, at="weights")
def _(draft: Draft) -> None:
    rounded = draft.pick("w.round()", "(w > 0.1).to(w.dtype)", "w.clamp(0, 0.3)", "w.sign()")
    draft.emit_one(
        f"w = w + ({rounded} - w).detach()",
        f"w = {rounded}.detach() + w - w.detach()",
        f"w = w + ({rounded} - w).data",
    )


@hostility("straight-through estimate", exact=False, at="middle")
def _(draft: Draft) -> None:
    """One path to the scores is cut, another one is not."""
    draft.emit_one(
        f"s = {draft.s} * {draft.s}.detach().abs()",
        f"s = {draft.s} + q.detach().sum()",
        f"s = torch.where({draft.s}.detach() > 0, {draft.s}, {draft.s}.detach())",
        f"s = {draft.s} + {draft.s}.data * 0.5",
    )
    draft.s = "s"
