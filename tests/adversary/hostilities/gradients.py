"""Gradient modes, detaching in each spelling, hooks, tensors that ask for gradients half-way."""

from ..draft import Draft
from .table import fact, hostility, lines
from .writing import freeze

NO_GRAD = [
    "with torch.no_grad():",
    "with torch.set_grad_enabled(False):",
    "with torch.autograd.grad_mode.no_grad():",
]
BETWEEN = ("scores", "middle", "weights", "late")
# Of an operand that is copied, the scores, the weights or the output.
ANYWHERE = ("before", "scores", "weights", "after")


def subject(draft: Draft, stage: str) -> str:
    """What there is at a stage, under its own name: a copy of an operand before the products."""
    if stage == "after":
        return "out"
    if stage != "before":
        return draft.subject(stage)
    x = draft.pick("q", "k", "v")
    draft.emit(f"{x} = {getattr(draft, x)} * 1.0")
    setattr(draft, x, x)
    return x


fact("no_grad over all", exact=True, island=NO_GRAD, wrap=None)
fact(
    "enable_grad over all", exact=True,
    island=["with torch.enable_grad():", "with torch.set_grad_enabled(True):"],
)  # fmt: skip
fact("no_grad between", exact=False, first_island=NO_GRAD)
fact("no_grad between", exact=False, second_island=NO_GRAD)


@hostility("no_grad between", exact=False, at=BETWEEN, training="all")
def _(draft: Draft, stage: str) -> None:
    x = draft.subject(stage)
    with draft.inside(draft.random.choice(NO_GRAD)):
        draft.emit(f"{x} = {x} {draft.pick('* 0.5', '+ 0.1', '/ 2')}")


SWITCHED = "grad mode switched on or off inside"


@hostility(SWITCHED, exact=False, at=("scores", "weights"), island=NO_GRAD, training="all")
def _(draft: Draft, stage: str) -> None:
    x = draft.subject(stage)
    with draft.inside("with torch.enable_grad():"):
        draft.emit(f"{x} = {x} * {draft.number()}")
        if draft.coin():
            draft.emit(f"{x} = {x} + {draft.q}.sum()")


@hostility(SWITCHED, exact=False)
def _(draft: Draft) -> None:
    for stages, mode in (
        (("before", "scores", "middle"), False),
        (("weights", "late", "after"), True),
    ):
        line = f"torch.set_grad_enabled({mode})"
        draft.at(draft.pick(*stages), lambda draft, line=line: draft.emit(line))


INFERENCE = "with torch.inference_mode():"
fact("inference_mode", exact=False, training="none", island=INFERENCE)


@hostility("inference_mode", exact=False, at="weights", training="none")
def _(draft: Draft) -> None:
    with draft.inside(INFERENCE):
        draft.emit("w = w * 0.5")


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
        draft.emit(f"{x} = {draft.random.choice(DETACHING).format(x=getattr(draft, x))}")
        setattr(draft, x, x)


@hostility("detach scores or weights", exact=False, at=BETWEEN)
def _(draft: Draft, stage: str) -> None:
    x = draft.subject(stage)
    text = draft.random.choice(DETACHING).format(x=x)
    draft.emit_one(
        f"{x} = {text}",
        f"{x} = {x} - {text} * 0.5",
        f"{x} = {x} * ({text} > 0)",
        f"{x} = {x} / (1 + {text}.abs())",
        f"{x} = {text} + ({x} - {x}.detach())",
        f"{x} = {x} * torch.sigmoid({x}).detach()",
        f"{x} = torch.clamp({text}, -1.0, 1.0)",
    )


def _in_place(draft: Draft, stage: str) -> None:
    draft.emit_one("{x}.detach_()", "torch.detach_({x})", "{x} = {x}.detach_()",
                   x=draft.subject(stage))  # fmt: skip


for _stages, _facts in {
    ("scores", "middle"): {"first": "@ mT"},  # a view cannot be detached in place
    ("weights", "late"): {},
}.items():
    hostility("detach_", exact=False, at=_stages, training="all", wrap=None, masking="{s} * {x}",
              **_facts)(_in_place)  # fmt: skip


@hostility("detach_", exact=False, at=("before",))
def _(draft: Draft, stage: str) -> None:
    draft.emit(f"{subject(draft, stage)}.detach_()")


@hostility("hooks and retain_grad", exact=False, at=ANYWHERE, training="all")
def _(draft: Draft, stage: str) -> None:
    x = subject(draft, stage)
    hook = draft.pick("lambda g: g * 0.5", "lambda g: g.clamp(-0.1, 0.1)", "lambda g: None")
    guard = "" if draft.coin(0.5) else f"if {x}.requires_grad: "
    draft.emit(f"{guard}{x}.register_hook({hook})")


@hostility("hooks and retain_grad", exact=False, at=ANYWHERE[1:], training="all")
def _(draft: Draft, stage: str) -> None:
    x = subject(draft, stage)
    draft.emit(f"{x}.retain_grad()")
    if draft.coin(0.3):
        draft.outputs.append(x)


@hostility("requires_grad_ half-way", exact=False, at=("before", "middle", "late"))
def _(draft: Draft, stage: str) -> None:
    x = subject(draft, stage)
    draft.emit(
        *draft.pick(
            (f"{x} = {x}.detach().requires_grad_()",),
            (f"{x} = {x}.clone().detach().requires_grad_(True)",),
            (f"{x} = {x}.detach_().requires_grad_(False)",),
            (f"{x} = torch.nn.Parameter({x}.detach())",),
            (f"{x} = {x}.detach()", f"{x}.requires_grad = True"),
        )
    )


@hostility("frozen operands", exact=True, training="all")
def _(draft: Draft) -> None:
    """Some operands ask for gradients and some do not."""
    freeze(draft, *draft.random.sample(("q", "k", "v"), draft.pick(1, 2)))


FUNCTION = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return {forward}

    @staticmethod
    def backward(ctx, grad):
        return {backward}

"""


@hostility(
    "autograd.Function", exact=False, at=ANYWHERE[:3], wrap=None,
    preamble=[
        FUNCTION.format(forward="x * 0.5", backward="grad * 3.0"),
        FUNCTION.format(forward="x.clamp(-1.0, 1.0)", backward="grad * 0.5"),
    ],
)  # fmt: skip
def _(draft: Draft, stage: str) -> None:
    x = subject(draft, stage)
    draft.emit(f"{x} = Own.apply({x})")


@hostility("straight-through estimate", exact=False, at="weights")
def _(draft: Draft) -> None:
    rounded = draft.pick(
        "w.round()", "(w > 0.1).to(w.dtype)", "w.clamp(0, 0.3)", "w.sign()", "w.relu()"
    )
    draft.emit_one(
        f"w = w + ({rounded} - w).detach()",
        f"w = {rounded}.detach() + w - w.detach()",
        f"w = w + ({rounded} - w).data",
    )


# One path to the scores is cut, another one is not.
lines(
    "straight-through estimate",
    "s = {x} * {x}.detach().abs()",
    "s = {x} + q.detach().sum()",
    "s = torch.where({x}.detach() > 0, {x}, {x}.detach())",
    "s = {x} + {x}.data * 0.5",
    exact=False, at="middle",
)  # fmt: skip
