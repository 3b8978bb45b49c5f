"""Transforms and ways in: functorch, checkpointing, export, modules with state, autocast."""

import textwrap
from collections.abc import Callable

from ..draft import Draft
from .table import fact, hostility, lines
from .writing import ANY, freeze, widened, write

Lines = list[str]


def _nested(name: str, arguments: str, body: Lines, *after: str) -> Lines:
    """The body as a function of its own, and what is done with it."""
    inner = [textwrap.indent(line, "    ") for line in body]
    return [f"    def {name}({arguments}):", *inner, "", *after]


def _floats(arguments: Lines) -> str:
    return ", ".join(x for x in ("q", "k", "v") if x in arguments)


def _checkpointing(reentrant: bool) -> Callable:
    def wrap(draft: Draft, body: Lines, arguments: Lines) -> Lines:
        names = ", ".join(arguments)
        called = f"    return checkpoint(body, {names}, use_reentrant={reentrant})"
        return _nested("body", names, body, called)

    return wrap


CHECKPOINTED = {"door": "call", "training": "all", "pure_inputs": True}
WRAPS = [_checkpointing(False), _checkpointing(True)]
fact("checkpoint, not reentrant", exact=True, wrap=WRAPS[0], **CHECKPOINTED)
fact("checkpoint, reentrant", exact=True, wrap=WRAPS[1], **CHECKPOINTED)


def _widened_and_written(draft: Draft) -> None:
    widened(draft)
    write(draft, draft.pick("q", "k", "v"), draft.random.choice(ANY))


for _name, _facts in (
    ("checkpoint around writes", {"wrap": WRAPS, **CHECKPOINTED}),
    ("export around writes", {"wrap": None, "door": "export"}),
):
    hostility(
        _name, exact=True, at="before", plain_operands=True, dtype=["bfloat16", "float32"],
        family=["heads", "batch", "gqa", "bnhd"], **_facts,
    )(_widened_and_written)  # fmt: skip


def _vmap(draft: Draft, body: Lines, arguments: Lines) -> Lines:
    mapped = _floats(arguments)
    for name in mapped.split(", "):
        operand = draft.operands[name]
        operand.dims = ("2", *operand.dims)
    more = draft.pick("", ", in_dims=0", ", randomness='same'")
    return _nested("one", mapped, body, f"    return torch.func.vmap(one{more})({mapped})")


def _jvp(draft: Draft, body: Lines, arguments: Lines) -> Lines:
    mapped = _floats(arguments)
    tangents = ", ".join(
        f"torch.ones_like({x}) * 0.{i + 3}" for i, x in enumerate(mapped.split(", "))
    )
    call = f"torch.func.jvp(body, ({mapped},), ({tangents},))"
    result = "(*primal, *tangent)" if draft.outputs else "primal, tangent"
    called = (f"    primal, tangent = {call}", f"    return {result}")
    return _nested("body", mapped, body, *called)


def _gradient(draft: Draft, body: Lines, arguments: Lines) -> Lines:
    mapped = _floats(arguments)
    first = "[0]" if draft.outputs else ""
    loss = f"lambda {mapped}: body({mapped}){first}.sum()"
    return _nested("body", mapped, body, f"    return torch.func.grad({loss})({mapped})")


def _functional(draft: Draft, body: Lines, arguments: Lines) -> Lines:
    given = [x for x in arguments if x not in ("k", "v")]
    text = textwrap.indent("\n".join(body), "    ")
    draft.settled["preamble"] = draft.settled.get("preamble", "") + (
        "class Inner(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.k = torch.nn.Parameter(torch.zeros(1))\n"
        "        self.v = torch.nn.Parameter(torch.zeros(1))\n\n"
        f"    def forward(self, {', '.join(given)}):\n"
        f"        k, v = self.k, self.v\n{text}\n\n\ninner = Inner()\n\n"
    )
    values = f"({', '.join(given)},)"
    return [f"    return torch.func.functional_call(inner, {{'k': k, 'v': v}}, {values})"]


TRANSFORMED = {"door": "call", "plain_operands": True}
fact("vmap", exact=False, wrap=_vmap, family=["heads", "batch"], **TRANSFORMED)
fact("jvp", exact=False, wrap=_jvp, training=["all", "none"], **TRANSFORMED)
fact("torch.func.grad", exact=False, wrap=_gradient, training=["all", "none"], **TRANSFORMED)
fact(
    "functional_call", exact=True, wrap=_functional, family=["heads", "batch", "gqa", "bnhd"],
    **TRANSFORMED,
)  # fmt: skip
fact("export", exact=True, door="export", wrap=None)


def _inside(draft: Draft, place: str, *names: str) -> None:
    """These operands are parameters or buffers of the module."""
    facts = draft.settled.setdefault("facts", {})
    for name in names:
        facts.setdefault(name, {})["place"] = place
        setattr(draft, name, f"self.{name}")


MODULE = {"door": "module", "wrap": None}


@hostility("module with parameters", exact=True, **MODULE)
def _(draft: Draft) -> None:
    _inside(draft, "parameter", *draft.pick(("k",), ("v",), ("k", "v")))


LATER = "module state changed later"


@hostility(LATER, exact=False, training="none", plain_operands=True, **MODULE)
def _(draft: Draft) -> None:
    name = draft.pick("k", "v")
    _inside(draft, "parameter", name)

    def act(draft: Draft) -> None:
        with draft.inside("with torch.no_grad():"):
            draft.emit_one("{x}.mul_(0.5)", "{x}.clamp_(-1, 1)", "{x}.copy_(torch.ones_like({x}))",
                           x=f"self.{name}")  # fmt: skip

    draft.at(draft.pick("before", "middle", "late", "after"), act)


def _buffer(*stages: str) -> Callable[[Draft], None]:
    """A counter, a decay or a running scale that the module keeps."""

    def plan(draft: Draft) -> None:
        stage = draft.pick(*stages)
        draft.at("start", _buffered)
        draft.at("scores", lambda draft: _used(draft, stage))
        draft.at(stage, _counted)

    return plan


def _buffered(draft: Draft) -> None:
    kind, values = draft.pick(("float32", "positive"), ("int64", "ints 1 5"), ("float", "positive"))
    dims = draft.pick("", "m")
    draft.operand("step", dims, kind=kind, values=values, grad=False, place="buffer")


def _used(draft: Draft, stage: str) -> None:
    # Eager saves a factor, and refuses the backward where it was changed later.
    factors = [] if draft.training and stage != "before" else ["* self.step", "/ self.step"]
    text = draft.pick("+ self.step", "- self.step", *factors)
    draft.emit(f"s = {draft.s} {text}", f"s = s.to({draft.v}.dtype)")
    draft.s = "s"


def _counted(draft: Draft) -> None:
    draft.emit_one("self.step += 1", "self.step.add_(1)", "self.step.mul_(2)",
                   "self.step.copy_(self.step + 1)", "self.step.data.add_(2)",
                   "self.step[...] = 3")  # fmt: skip


hostility("module state changed before", exact=True, **MODULE)(_buffer("before"))
hostility(LATER, exact=False, **MODULE)(_buffer("weights", "late", "after", "end"))


@hostility(
    LATER, exact=False, plain_operands=True, family=["heads", "batch"], training=["none", "all"],
    **MODULE,
)  # fmt: skip
def _(draft: Draft) -> None:
    """A cache of keys and values: rows are written, then attended to, then decayed."""
    _inside(draft, "buffer", "k", "v")
    freeze(draft, "k", "v")
    late = draft.coin(0.5)

    def act(draft: Draft) -> None:
        x = "v" if late and draft.training else draft.pick("k", "v")
        if late and draft.training:
            draft.emit("out = out.detach()")
        draft.emit_one("{x}[..., :1, :] = 0.5", "{x}.mul_(0.9)", "{x}.roll(1, -2)",
                       "{x}[..., -1, :].zero_()", x=f"self.{x}")  # fmt: skip

    draft.at("after" if late else "before", act)


AUTOCAST = 'with torch.autocast("cpu", dtype=torch.bfloat16):'
IN_FP32 = {"literal": False, "dtype": "float32"}
PART = "autocast over a part"
fact("autocast over all", exact=True, island=AUTOCAST, **IN_FP32)
lines(
    PART, "s = {x}.float()", "s = {x}.to(torch.float32)", exact=False, at="scores",
    first_island=AUTOCAST, **IN_FP32,
)  # fmt: skip
fact(PART, exact=False, second_island=AUTOCAST, **IN_FP32)


@hostility(PART, exact=False, at="weights", **IN_FP32)
def _(draft: Draft) -> None:
    with draft.inside(AUTOCAST):
        draft.emit("w = w * 0.5")


@hostility(PART, exact=False, at="weights", island=AUTOCAST, **IN_FP32)
def _(draft: Draft) -> None:
    with draft.inside('with torch.autocast("cpu", enabled=False):'):
        draft.emit_one("w = w.float() * 0.5", "w = w * w.float().sigmoid()")
