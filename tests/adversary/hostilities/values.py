"""Special values, promotion of dtypes, constants that overflow, formulas with two branches."""

from collections.abc import Callable

from ..draft import Draft
from ..steps import broadcast
from .table import fact, hostility

SPECIAL = ("nan", "inf", "zeros", "subnormal", "huge", "specials")
ON_SCORES = ("middle", "weights")


def _special_operand(name: str) -> Callable[[Draft], None]:
    def plan(draft: Draft) -> None:
        facts = draft.settled.setdefault("facts", {})
        facts.setdefault(name, {})["values"] = draft.random.choice(SPECIAL)

    return plan


for _name in ("q", "k", "v"):
    hostility(f"special values in {_name}", exact=True, specials=True)(_special_operand(_name))


@hostility(
    "special values in bias", exact=True, at="end", specials=True, bias=True, bias_name="bias"
)
def _(draft: Draft) -> None:
    _assign(draft, draft.random.choice(SPECIAL))


def _assign(draft: Draft, values: str | tuple) -> None:
    if "bias" in draft.operands:
        draft.operands["bias"].values = values


def _float_mask(draft: Draft) -> str:
    values = draft.random.choice(SPECIAL)
    return draft.operand("weight", "n m", values=values, grad=draft.coin() and None)


fact("special values in mask", exact=True, specials=True, mask=_float_mask, masking="{s} * {x}")


@hostility("NaN in maximum or minimum", exact=True, at="middle", specials=True)
def _(draft: Draft) -> None:
    bound = draft.operand("bound", "n m", values=draft.pick("nan", "inf", "specials", "zeros"))
    name = draft.pick("maximum", "minimum", "max", "min")
    draft.assign("middle", f"torch.{name}({draft.s}, {bound})")


@hostility("clamp by tensors", exact=False, at="middle", specials=True)
def _(draft: Draft) -> None:
    bound = draft.operand("bound", "n m", values=draft.pick("normal", "nan", "specials"))
    text = draft.pick(
        "{s}.clamp(min={b})",
        "{s}.clamp(max={b})",
        "torch.clamp({s}, {b}, {b} + 1)",
        "torch.clamp_min({s}, {b})",
        "torch.fmax({s}, {b})",
        "torch.fmin({s}, {b})",
        "{s}.clamp(1.0, -1.0)",
        "{s}.clamp(max=float('nan'))",
        "{s}.clamp(min=-float('inf'))",
    )
    draft.assign("middle", text.format(s=draft.s, b=bound))


INTEGERS = {"bool": "bool", "int64": "ints 1 3", "int32": "ints 1 3", "uint8": "ints 1 3"}


@hostility("promotion: 0-dim tensors", exact=True, at=ON_SCORES)
def _(draft: Draft, stage: str) -> None:
    kind = draft.pick("float64", "float32", "int64", "bool", "int32", "uint8", "bfloat16")
    c = draft.operand("factor", kind=kind, values=INTEGERS.get(kind, "positive"))
    form = draft.pick("{x} * {c}", "{x} + {c}", "{c} * {x}", "{x} / ({c} + 1)", "{c} - {x}")
    draft.assign(stage, form.format(x=draft.subject(stage), c=c))


@hostility("promotion: Python scalars", exact=True, at=ON_SCORES)
def _(draft: Draft, stage: str) -> None:
    form = draft.pick("{x} * 3", "{x} + True", "{x} * True", "2 * {x} - 1", "{x} * 1e-3",
                      "{x} / 7", "1 - {x}", "{x} * math.pi", "{x} + 1e-12", "{x} * (1 << 4)",
                      "{x} * -0.0 + {x}", "{x} - 0", "{x} * 1", "{x} / 1")  # fmt: skip
    draft.assign(stage, form.format(x=draft.subject(stage)))


@hostility("promotion: wider tensors", exact=False, dtype=["float32", "bfloat16"])
def _(draft: Draft) -> None:
    """A wider tensor with a dimension promotes the scores; the values have to follow."""
    stage = draft.pick(*ON_SCORES)

    def act(draft: Draft) -> None:
        c = draft.operand("factor", draft.pick("1", "m"), kind="float64", values="positive")
        draft.assign(stage, f"{draft.subject(stage)} {draft.pick('*', '+', '/')} {c}")

    draft.at(stage, act)
    draft.at("late", _as_the_value)


def _as_the_value(draft: Draft) -> None:
    draft.emit_one(f"w = w.to({draft.v}.dtype)", f"w = w.type_as({draft.v})")


ROUNDINGS = (
    "{x}.round()",
    "{x}.floor() + {x}",
    "{x}.long() * 0.5 * {x}",
    "{x}.half().to({x}.dtype)",
    "{x}.trunc()",
    "torch.sign({x})",
)


@hostility("casts between the products", exact=False, at=ON_SCORES, literal=True)
def _(draft: Draft, stage: str) -> None:
    """Explicit roundings are part of what the model computes."""
    x = draft.subject(stage)
    scaled = draft.pick(x, f"({x} * 4)", f"(3.0 * {x})")
    kind = draft.pick("bfloat16", "float16", "int32", "int64", "bool", "float64", "int8", "")
    text = f"{{x}}.to(torch.{kind}).to({draft.v}.dtype)" if kind else draft.random.choice(ROUNDINGS)
    draft.assign(stage, text.format(x=scaled))


@hostility("infinite and huge fills", exact=False, at=ON_SCORES)
def _(draft: Draft, stage: str) -> None:
    x = draft.subject(stage)
    # Whether a sum of several of the least number is infinite, NaN or neither is for its order to
    # say, in eager too. The square of this one overflows; a sum of as many as there are does not.
    least = f"torch.finfo({x}.dtype).min * 2.0**-20"
    fill = draft.pick('float("-inf")', "-1e9", least, 'float("inf")')
    draft.assign(stage, f"{x}.masked_fill({broadcast(draft, 'bool')}, {fill})")


OVERFLOW = "constants that overflow when folded"
IN_FP64 = (
    "{x} * 1e308 * 1e-308", "{x} * 1e200 * 1e200 * 1e-300", "{x} + 1e308 - 1e308",
    "{x} / 1e-308 / 1e308", "({x} * 1e-200) * 1e-200 * 1e300",
)  # fmt: skip
IN_FP32 = (
    "{x} * 1e38 * 1e-38", "{x} * 1e30 * 1e-30", "{x} / 1e-38 / 1e38", "({x} + 1e38) - 1e38",
    "{x} * 1e-30 * 1e-30 * 1e50", "{x} * 1e39 * 1e-39", "{x} / 1e20 / 1e20 * 1e38",
    "(-{x}) * 1e38 / -1e38", "{x} + 1e10 - 1e10",
)  # fmt: skip


@hostility(OVERFLOW, exact=False, specials=True, literal=True,
           dtype=["float64", "float32", "float32", "bfloat16"])  # fmt: skip
def _(draft: Draft) -> None:
    stage = draft.pick("middle", "middle", "weights")
    if draft.coin(0.6):
        values = tuple(draft.pick(90.0, -120.0, 40.0, 3.0) for _ in range(13))
        draft.settled.setdefault("facts", {}).setdefault("q", {})["values"] = values

    def act(draft: Draft) -> None:
        forms = IN_FP64 if draft.fact("dtype") == "float64" else IN_FP32
        draft.assign(stage, draft.random.choice(forms).format(x=draft.subject(stage)))

    draft.at(stage, act)


@hostility(OVERFLOW, exact=False, at=ON_SCORES, specials=True, literal=True)
def _(draft: Draft, stage: str) -> None:
    constant = draft.pick(
        "float('inf')", "-float('inf')", "float('nan')", "1e300", "1e-300", "2 ** 63", "2 ** 31",
        "-0.0", "1e39", "5e-324", "2 ** 100",
    )  # fmt: skip
    form = draft.pick("{x} * ({c})", "{x} + ({c})", "{x} / ({c})", "({c}) - {x}",
                      "torch.where({x} > 0, {x}, {c})", "{x}.masked_fill({x} < 0, {c})",
                      "{x}.clamp(max={c})", "torch.full_like({x}, {c}) * {x}",
                      "{x}.clamp(min={c})", "{x} * ({c}) * 0")  # fmt: skip
    draft.assign(stage, form.format(x=draft.subject(stage), c=constant))


@hostility("formulas with two branches", exact=False, at="middle", specials=True)
def _(draft: Draft) -> None:
    """Equal in real numbers, and not in floating point: lerp, a sum of two masked halves."""
    form = draft.pick(
        "torch.lerp(torch.full_like({x}, -1e9), {x}, half)",
        "torch.lerp(torch.full_like({x}, -1e9), {x}, half)",
        "torch.lerp(torch.full_like({x}, 1e4), {x}, half)",
        "torch.lerp({x}, torch.full_like({x}, -1e9), half)",
        "{x} * half + (1 - half) * -1e9",
        "{x} * half - (1 - half) * 1e30",
        "torch.where(half > 0, {x}, {x} / 0)",
        "torch.where(half > 0, {x}, torch.full_like({x}, float('nan')))",
        "torch.addcmul({x}, {x}, half, value=-1)",
        "torch.lerp(torch.zeros_like({x}), {x}, 0.75)",
        "torch.lerp({x}, {x} * 1e20, half)",
        "{x}.lerp(torch.full_like({x}, 1e8), half)",
        "torch.lerp({x}, -{x}, half * 0.5)",
    )
    half = draft.operand("half", "n m", values="zero_one", grad=False)
    draft.emit(f"half = {half}.to({draft.s}.dtype)")
    draft.assign("middle", form.format(x=draft.s))


fact("exotic activation", exact=False, exotic=True)


@hostility("activation at special values", exact=True, specials=True, bias=True, bias_name="bias")
def _(draft: Draft) -> None:
    """Scores of ±inf, NaN, ±0 and kinks by way of the bias."""
    values = draft.pick((0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3.0, -3.0, 1e-40),
                        (20.0, 20.5, -20.0, 88.0, 89.0, -103.0, 1e4, -1e4), (0.0, -0.0, 1.0, -1.0),
                        (6.0, 3.0, -3.0, 0.0, 0.5, -0.5))  # fmt: skip
    if draft.coin(0.6):
        draft.settled.setdefault("facts", {}).setdefault("q", {})["values"] = (0.0,)
    draft.at("end", lambda draft: _assign(draft, values))
