"""Transforms and ways in: functorch, checkpointing, export, modules with state, autocast."""

from collections.abc import Callable

from ..draft import Draft
from .table import hostility
from .writing import VIEWS, freeze, write

Lines = list[str]


def _nested(lines: Lines) -> Lines:
    return ["    " + line.replace("\n", "\n    ") for line in lines]


def _floats(arguments: Lines) -> str:
    return ", ".join(x for x in ("q", "k", "v") if x in arguments)


def _checkpointed(reentrant: bool) -> Callable[[Draft], None]:
    def plan(draft: Draft) -> None:
        draft.settle(wrap=_WRAPS[reentrant], door="call")
        draft.settle(training="all", pure_inputs=True)

    return plan


def _checkpoint_wrap(reentrant: bool) -> Callable:
    def wrap(draft: Draft, lines: Lines, arguments: Lines) -> Lines:
        names = ", ".join(arguments)
        return [
            f"    def body({names}):",
            *_nested(lines),
            "",
            f"    return checkpoint(body, {names}, use_reentrant={reentrant})",
        ]

    return wrap


_WRAPS = {reentrant: _checkpoint_wrap(reentrant) for reentrant in (False, True)}

hostility("checkpoint, not reentrant", exact=True)(_checkpointed(False))
hostility("checkpoint, reentrant", exact=True)(_checkpointed(True))


@hostility("checkpoint around writes", exact=True)
def _(draft: Draft) -> None:
    _checkpointed(draft.coin())(draft)
    draft.settle(family=draft.pick("heads", "batch", "gqa", "bnhd"))
    draft.settle(dtype=draft.pick("bfloat16", "float32"), plain_operands=True)

    def act(draft: Draft) -> None:
        cast = "float" if draft.fact("dtype") == "bfloat16" else "double"
        for x in "qkv":
            draft.emit(f"{x} = {getattr(draft, x)}.{cast}()")
            setattr(draft, x, x)
        write(draft, draft.pick("q", "k", "v"), draft.random.choice(("{x}", *VIEWS)))

    draft.at("before", act)


def _vmap(draft: Draft, lines: Lines, arguments: Lines) -> Lines:
    mapped = _floats(arguments)
    for name in mapped.split(", "):
        operand = draft.operands[name]
        operand.shape = (2, *operand.shape)
    more = draft.pick("", ", in_dims=0", ", randomness='same'")
    return [
        f"    def one({mapped}):",
        *_nested(lines),
        "",
        f"    return torch.func.vmap(one{more})({mapped})",
    ]


@hostility("vmap", exact=False)
def _(draft: Draft) -> None:
    draft.settle(wrap=_vmap, door="call")
    draft.settle(family=draft.pick("heads", "batch"))


def _jvp(draft: Draft, lines: Lines, arguments: Lines) -> Lines:
    mapped = _floats(arguments)
    tangents = ", ".join(
        f"torch.ones_like({x}) * 0.{i + 3}" for i, x in enumerate(mapped.split(", "))
    )
    call = f"torch.func.jvp(body, ({mapped},), ({tangents},))"
    result = "(*primal, *tangent)" if draft.outputs else "primal, tangent"
    return [f"    def body({mapped}):", *_nested(lines), "", f"    primal, tangent = {call}",
            f"    return {result}"]  # fmt: skip


@hostility("jvp", exact=False)
def _(draft: Draft) -> None:
    draft.settle(wrap=_jvp, door="call", training=draft.pick("all", "none"))


def _gradient(draft: Draft, lines: Lines, arguments: Lines) -> Lines:
    mapped = _floats(arguments)
    first = "[0]" if draft.outputs else ""
    return [
        f"    def body({mapped}):",
        *_nested(lines),
        "",
        f"    return torch.func.grad(lambda {mapped}: body({mapped}){first}.sum())({mapped})",
    ]


@hostility("torch.func.grad", exact=False)
def _(draft: Draft) -> None:
    draft.settle(wrap=_gradient, door="call", training=draft.pick("all", "none"))


def _functional(draft: Draft, lines: Lines, arguments: Lines) -> Lines:
    given = [x for x in arguments if x not in ("k", "v")]
    body = "\n".join("    " + line.replace("\n", "\n    ") for line in lines)
    draft.settled["preamble"] = draft.settled.get("preamble", "") + (
        "class Inner(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.k = torch.nn.Parameter(torch.zeros(1))\n"
        "        self.v = torch.nn.Parameter(torch.zeros(1))\n\n"
        f"    def forward(self, {', '.join(given)}):\n"
        f"        k, v = self.k, self.v\n{body}\n\n\ninner = Inner()\n\n"
    )
    comma = "," if len(given) == 1 else ""
    values = f"({', '.join(given)}{comma})"
    return [f"    return torch.func.functional_call(inner, {{'k': k, 'v': v}}, {values})"]


@hostility("functional_call", exact=True)
def _(draft: Draft) -> None:
    draft.settle(wrap=_functional, door="call", family=draft.pick("heads", "batch", "gqa", "bnhd"))


@hostility("export", exact=True)
def _(draft: Draft) -> None:
    draft.settle(door="export", wrap=None)


@hostility("export around writes", exact=True)
def _(draft: Draft) -> None:
    draft.settle(door="export", wrap=None, plain_operands=True)
    draft.settle(family=draft.pick("heads", "batch", "gqa", "bnhd"))
    draft.settle(dtype=draft.pick("bfloat16", "float32"))

    def act(draft: Draft) -> None:
        cast = "float" if draft.fact("dtype") == "bfloat16" else "double"
        for x in "qkv":
            draft.emit(f"{x} = {getattr(draft, x)}.{cast}()")
            setattr(draft, x, x)
        write(draft, draft.pick("q", "k", "v"), draft.random.choice(("{x}", *VIEWS)))

    draft.at("before", act)


def _inside(draft: Draft, place: str, *names: str) -> None:
    """These operands are parameters or buffers of the module."""
    draft.settle(door="module", wrap=None)
    facts = draft.settled.setdefault("facts", {})
    for name in names:
        facts.setdefault(name, {})["place"] = place
        setattr(draft, name, f"self.{name}")
        if name in "qk":
            draft.settle(**{f"{name}_source": f"self.{name}"})


@hostility("module with parameters", exact=True)
def _(draft: Draft) -> None:
    _inside(draft, "parameter", *draft.pick(("k",), ("v",), ("k", "v")))


@hostility("module state changed later", exact=False)
def _(draft: Draft) -> None:
    name = draft.pick("k", "v")
    draft.settle(training="none", plain_operands=True)
    _inside(draft, "parameter", name)
    stage = draft.pick("before", "middle", "late", "after")

    def act(draft: Draft) -> None:
        with draft.inside("with torch.no_grad():"):
            draft.emit(draft.pick(f"self.{name}.mul_(0.5)", f"self.{name}.clamp_(-1, 1)",
                                  f"self.{name}.copy_(torch.ones_like(self.{name}))"))  # fmt: skip

    draft.at(stage, act)


@hostility("module state changed before", exact=True)
def _(draft: Draft) -> None:
    _buffer(draft, "before")


@hostility("module state changed later", exact=False)
def _(draft: Draft) -> None:
    _buffer(draft, draft.pick("weights", "late", "after", "end"))


def _buffer(draft: Draft, stage: str) -> None:
    """A counter, a decay or a running scale that the module keeps."""
    draft.settle(door="module", wrap=None)
    kind, values = draft.pick(("float32", "positive"), ("int64", "ints 1 5"), ("float", "positive"))

    def start(draft: Draft) -> None:
        z = draft.sizes
        shape = draft.pick((), (z["m"],))
        draft.operand("step", *shape, kind=kind, values=values, grad=False, place="buffer")

    def act(draft: Draft) -> None:
        draft.emit(draft.pick("self.step += 1", "self.step.add_(1)", "self.step.mul_(2)",
                              "self.step.copy_(self.step + 1)", "self.step.data.add_(2)",
                              "self.step[...] = 3"))  # fmt: skip

    def use(draft: Draft) -> None:
        # Eager saves a factor, and refuses the backward where it was changed later.
        later = draft.training and stage != "before"
        text = draft.pick(
            "+ self.step", "- self.step", *([] if later else ["* self.step", "/ self.step"])
        )
        draft.emit(f"s = {draft.s} {text}", f"s = s.to({draft.v}.dtype)")
        draft.s = "s"

    draft.at("start", start)
    draft.at("scores", use)
    draft.at(stage, act)


@hostility("module state changed later", exact=False)
def _(draft: Draft) -> None:
    """A cache of keys and values: rows are written, then attended to, then decayed."""
    draft.settle(plain_operands=True)
    _inside(draft, "buffer", "k", "v")
    draft.settle(family=draft.pick("heads", "batch"))
    freeze(draft, "k", "v")
    draft.settle(training=draft.pick("none", "all"))
    late = draft.coin(0.5)

    def act(draft: Draft) -> None:
        x = "v" if late and draft.training else draft.pick("k", "v")
        if late and draft.training:
            draft.emit("out = out.detach()")
        draft.emit(
            draft.pick(
                f"self.{x}[..., :1, :] = 0.5",
                f"self.{x}.mul_(0.9)",
                f"self.{x}.roll(1, -2)",
                f"self.{x}[..., -1, :].zero_()",
            )
        )

    draft.at("after" if late else "before", act)


@hostility("autocast over all", exact=True)
def _(draft: Draft) -> None:
    draft.settle(literal=False)
    draft.settle(dtype="float32", island='with torch.autocast("cpu", dtype=torch.bfloat16):')


@hostility("autocast over a part", exact=False)
def _(draft: Draft) -> None:
    draft.settle(literal=False)
    draft.settle(dtype="float32")
    which = draft.pick("first", "middle", "second")

    autocast = 'with torch.autocast("cpu", dtype=torch.bfloat16):'

    def first(draft: Draft) -> None:
        draft.emit(draft.pick("s = s.float()", "s = s.to(torch.float32)"))

    def middle(draft: Draft) -> None:
        with draft.inside(autocast):
            draft.emit("w = w * 0.5")

    if which == "first":
        draft.settle(first_island=autocast)
        draft.at("scores", first)
    elif which == "second":
        draft.settle(second_island=autocast)
    else:
        draft.at("weights", middle)


@hostility("autocast over a part", exact=False)
def _(draft: Draft) -> None:
    draft.settle(literal=False)
    draft.settle(dtype="float32", island='with torch.autocast("cpu", dtype=torch.bfloat16):')

    def act(draft: Draft) -> None:
        with draft.inside('with torch.autocast("cpu", enabled=False):'):
            draft.emit("w = w.float() * 0.5" if draft.coin() else "w = w * w.float().sigmoid()")

    draft.at("weights", act)
