"""Special values, promotion of dtypes, constants that overflow, formulas with two branches."""

from ..draft import Draft
from .table import hostility

SPECIAL = ("nan", "inf", "zeros", "subnormal", "huge", "specials")


def _special(name: str) -> None:
    @hostility(f"special values in {name}", exact=True)
    def plan(draft: Draft) -> None:
        draft.settle(specials=True)
        values = draft.random.choice(SPECIAL)
        if name in ("q", "k", "v"):
            facts = draft.settled.setdefault("facts", {})
            facts.setdefault(name, {})["values"] = values
        elif name == "bias":
            draft.settle(bias=True, bias_name="bias")
            draft.at("end", lambda draft: _assign(draft, "bias", values))
        else:
            draft.settle(mask=lambda draft: _float_mask(draft, values), masking="{w} * {x}")


for _name in ("q", "k", "v", "bias", "mask"):
    _special(_name)


def _assign(draft: Draft, name: str, values: str) -> None:
    if name in draft.operands:
        draft.operands[name].values = values


def _float_mask(draft: Draft, values: str) -> str:
    z = draft.sizes
    return draft.operand("weight", z["n"], z["m"], values=values, grad=draft.coin() and None)


@hostility("NaN in maximum or minimum", exact=True)
def _(draft: Draft) -> None:
    draft.settle(specials=True)
    values = draft.pick("nan", "inf", "specials", "zeros")

    def act(draft: Draft) -> None:
        z = draft.sizes
        bound = draft.operand("bound", z["n"], z["m"], values=values)
        name = draft.pick("maximum", "minimum", "max", "min")
        draft.assign("middle", f"torch.{name}({draft.s}, {bound})")

    draft.at("middle", act)


@hostility("clamp by tensors", exact=False)
def _(draft: Draft) -> None:
    draft.settle(specials=True)
    values = draft.pick("normal", "nan", "specials")

    def act(draft: Draft) -> None:
        z = draft.sizes
        bound = draft.operand("bound", z["n"], z["m"], values=values)
        draft.emit_one(
            "s = {s}.clamp(min={b})",
            "s = {s}.clamp(max={b})",
            "s = torch.clamp({s}, {b}, {b} + 1)",
            "s = torch.clamp_min({s}, {b})",
            "s = torch.fmax({s}, {b})",
            "s = torch.fmin({s}, {b})",
            "s = {s}.clamp(1.0, -1.0)",
            "s = {s}.clamp(max=float('nan'))",
            "s = {s}.clamp(min=-float('inf'))",
            s=draft.s,
            b=bound,
        )
        draft.s = "s"

    draft.at("middle", act)


@hostility("promotion: 0-dim tensors", exact=True)
def _(draft: Draft) -> None:
    kind = draft.pick("float64", "float32", "int64", "bool", "int32", "uint8", "bfloat16")
    stage = draft.pick("middle", "weights")

    def act(draft: Draft) -> None:
        values = {"bool": "bool", "int64": "ints 1 3", "int32": "ints 1 3", "uint8": "ints 1 3"}
        c = draft.operand("factor", kind=kind, values=values.get(kind, "positive"), grad=False)
        x = draft.subject(stage)
        form = draft.pick("{x} * {c}", "{x} + {c}", "{c} * {x}", "{x} / ({c} + 1)", "{c} - {x}")
        draft.assign(stage, form.format(x=x, c=c))

    draft.at(stage, act)


@hostility("promotion: Python scalars", exact=True)
def _(draft: Draft) -> None:
    stage = draft.pick("middle", "weights")

    def act(draft: Draft) -> None:
        x = draft.subject(stage)
        form = draft.pick("{x} * 3", "{x} + True", "{x} * True", "2 * {x} - 1", "{x} * 1e-3",
                          "{x} / 7", "1 - {x}", "{x} * math.pi", "{x} + 1e-12", "{x} * (1 << 4)",
                          "{x} * -0.0 + {x}", "{x} - 0", "{x} * 1", "{x} / 1")  # fmt: skip
        draft.assign(stage, form.format(x=x))

    draft.at(stage, act)


@hostility("promotion: wider tensors", exact=False)
def _(draft: Draft) -> None:
    """A wider tensor with a dimension promotes the scores; the values have to follow."""
    draft.settle(dtype=draft.pick("float32", "bfloat16"))
    stage = draft.pick("middle", "weights")

    def act(draft: Draft) -> None:
        z = draft.sizes
        c = draft.operand("factor", draft.pick(1, z["m"]), kind="float64", values="positive")
        x = draft.subject(stage)
        draft.assign(stage, f"{x} {draft.pick('*', '+', '/')} {c}")

    def match(draft: Draft) -> None:
        draft.emit_one(f"w = w.to({draft.v}.dtype)", f"w = w.type_as({draft.v})")

    draft.at(stage, act)
    draft.at("late", match)


@hostility("casts between the products", exact=False)
def _(draft: Draft) -> None:
    """Explicit roundings are part of what the model computes."""
    draft.settle(literal=True)
    stage = draft.pick("middle", "weights")
    kind = draft.pick("bfloat16", "float16", "int32", "int64", "bool", "float64", "int8")

    def act(draft: Draft) -> None:
        x = draft.subject(stage)
        scaled = draft.pick(x, f"({x} * 4)")
        draft.assign(stage, f"{scaled}.to(torch.{kind}).to({draft.v}.dtype)")

    draft.at(stage, act)


@hostility("constants that overflow when folded", exact=False)
def _(draft: Draft) -> None:
    draft.settle(specials=True)
    forms = {
        "float64": ("{x} * 1e308 * 1e-308", "{x} * 1e200 * 1e200 * 1e-300", "{x} + 1e308 - 1e308",
                    "{x} / 1e-308 / 1e308", "({x} * 1e-200) * 1e-200 * 1e300"),
        "float32": ("{x} * 1e38 * 1e-38", "{x} * 1e30 * 1e-30", "{x} / 1e-38 / 1e38",
                    "({x} + 1e38) - 1e38", "{x} * 1e-30 * 1e-30 * 1e50", "{x} * 1e39 * 1e-39",
                    "{x} / 1e20 / 1e20 * 1e38", "(-{x}) * 1e38 / -1e38", "{x} + 1e10 - 1e10"),
    }  # fmt: skip
    dtype = draft.pick("float64", "float32", "float32", "bfloat16")
    draft.settle(dtype=dtype, literal=True)
    facts = draft.settled.setdefault("facts", {})
    if draft.coin(0.6):
        facts.setdefault("q", {})["values"] = tuple(
            draft.random.choice((90.0, -120.0, 40.0, 3.0)) for _ in range(13)
        )
    stage = draft.pick("middle", "middle", "weights")

    def act(draft: Draft) -> None:
        x = draft.subject(stage)
        form = draft.random.choice(forms.get(dtype, forms["float32"]))
        draft.assign(stage, form.format(x=x))

    draft.at(stage, act)


@hostility("constants that overflow when folded", exact=False)
def _(draft: Draft) -> None:
    draft.settle(specials=True)
    stage = draft.pick("middle", "weights")
    draft.settle(literal=True)

    def act(draft: Draft) -> None:
        x = draft.subject(stage)
        constant = draft.pick(
            "float('inf')",
            "-float('inf')",
            "float('nan')",
            "1e300",
            "1e-300",
            "2 ** 63",
            "2 ** 31",
            "-0.0",
            "1e39",
            "5e-324",
            "2 ** 100",
        )
        form = draft.pick("{x} * ({c})", "{x} + ({c})", "{x} / ({c})", "({c}) - {x}",
                          "torch.where({x} > 0, {x}, {c})", "{x}.masked_fill({x} < 0, {c})",
                          "{x}.clamp(max={c})", "torch.full_like({x}, {c}) * {x}",
                          "{x}.clamp(min={c})", "{x} * ({c}) * 0")  # fmt: skip
        draft.assign(stage, form.format(x=x, c=constant))

    draft.at(stage, act)


@hostility("formulas with two branches", exact=False)
def _(draft: Draft) -> None:
    """Equal in real numbers, and not in floating point: lerp, a sum of two masked halves."""
    draft.settle(specials=True)
    forms = (
        "torch.lerp(torch.full_like({x}, -1e9), {x}, {m})",
        "torch.lerp(torch.full_like({x}, -1e9), {x}, {m})",
        "torch.lerp(torch.full_like({x}, 1e4), {x}, {m})",
        "torch.lerp({x}, torch.full_like({x}, -1e9), {m})",
        "{x} * {m} + (1 - {m}) * -1e9",
        "{x} * {m} - (1 - {m}) * 1e30",
        "torch.where({m} > 0, {x}, {x} / 0)",
        "torch.where({m} > 0, {x}, torch.full_like({x}, float('nan')))",
        "torch.addcmul({x}, {x}, {m}, value=-1)",
        "torch.lerp(torch.zeros_like({x}), {x}, 0.75)",
        "torch.lerp({x}, {x} * 1e20, {m})",
        "{x}.lerp(torch.full_like({x}, 1e8), {m})",
        "torch.lerp({x}, -{x}, {m} * 0.5)",
    )

    def act(draft: Draft) -> None:
        z = draft.sizes
        m = draft.operand("half", z["n"], z["m"], values="zero_one", grad=False)
        draft.emit(f"half = {m}.to({draft.s}.dtype)")
        m = "half"
        draft.assign("middle", f"{draft.random.choice(forms).format(x=draft.s, m=m)}")

    draft.at("middle", act)


@hostility("exotic activation", exact=False)
def _(draft: Draft) -> None:
    draft.settle(exotic=True)


@hostility("activation at special values", exact=True)
def _(draft: Draft) -> None:
    """Scores of ±inf, NaN, ±0 and kinks by way of the bias."""
    draft.settle(specials=True)
    draft.settle(bias=True, bias_name="bias")
    values = draft.pick((0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3.0, -3.0, 1e-40),
                        (20.0, 20.5, -20.0, 88.0, 89.0, -103.0, 1e4, -1e4), (0.0, -0.0, 1.0, -1.0),
                        (6.0, 3.0, -3.0, 0.0, 0.5, -0.5))  # fmt: skip
    facts = draft.settled.setdefault("facts", {})
    if draft.coin(0.6):
        facts.setdefault("q", {})["values"] = (0.0,)
    draft.at("end", lambda draft: _assign(draft, "bias", values))
