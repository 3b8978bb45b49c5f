"""Instructions without side effects, as data: one row for each, opcode to kinds and an expression.

A row says which kind the result and each operand have, and how the result is computed from the
operands {0}, {1}, ... with NumPy and `lanes`. Modifiers that do not change what is computed here
are dropped from the opcode before it is looked up (`IGNORED`); any other unknown modifier is an
error.
"""

from dataclasses import dataclass

# Rounding to nearest is the only mode of arithmetic here; approximations are exact.
IGNORED = {"rn", "ftz", "approx", "full", "noftz"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARE |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
ORDERED_ONLY = {"lt", "le", "gt", "ge", "eq"}


@dataclass(frozen=True)
class Rule:
    out: str
    ins: tuple[str, ...]
    text: str


def key_of(parts: list[str]) -> str:
    return ".".join(part for part in parts if part not in IGNORED)


def integer_rules(bits: int) -> dict[str, Rule]:
    u, i, rows = f"u{bits}", f"i{bits}", {}
    for sign, kind in (("u", u), ("s", i)):
        t = f"{sign}{bits}"
        rows |= {
            f"add.{t}": Rule(u, (u, u), "{0} + {1}"),
            f"sub.{t}": Rule(u, (u, u), "{0} - {1}"),
            f"mul.lo.{t}": Rule(u, (u, u), "{0} * {1}"),
            f"mad.lo.{t}": Rule(u, (u, u, u), "{0} * {1} + {2}"),
            f"div.{t}": Rule(kind, (kind, kind), "divide({0}, {1})"),
            f"rem.{t}": Rule(kind, (kind, kind), "remainder({0}, {1})"),
            f"min.{t}": Rule(kind, (kind, kind), "np.minimum({0}, {1})"),
            f"max.{t}": Rule(kind, (kind, kind), "np.maximum({0}, {1})"),
            f"min.relu.{t}": Rule(kind, (kind, kind), "np.maximum(np.minimum({0}, {1}), 0)"),
            f"max.relu.{t}": Rule(kind, (kind, kind), "np.maximum(np.maximum({0}, {1}), 0)"),
            f"shr.{t}": Rule(kind, (kind, "u32"), "shr({0}, {1})"),
        }
    rows |= {
        f"neg.s{bits}": Rule(i, (i,), "-{0}"),
        f"abs.s{bits}": Rule(i, (i,), "np.abs({0})"),
        f"and.b{bits}": Rule(u, (u, u), "{0} & {1}"),
        f"or.b{bits}": Rule(u, (u, u), "{0} | {1}"),
        f"xor.b{bits}": Rule(u, (u, u), "{0} ^ {1}"),
        f"not.b{bits}": Rule(u, (u,), "~{0}"),
        f"shl.b{bits}": Rule(u, (u, "u32"), "shl({0}, {1})"),
        f"shr.b{bits}": Rule(u, (u, "u32"), "shr({0}, {1})"),
    }
    return rows


def wide_rules(bits: int) -> dict[str, Rule]:
    rows = {}
    for sign, kind in (("u", f"u{bits}"), ("s", f"i{bits}")):
        out = f"{kind[0]}{2 * bits}"
        t = f"{sign}{bits}"
        rows[f"mul.wide.{t}"] = Rule(out, (kind, kind), "wide({0}) * wide({1})")
        rows[f"mad.wide.{t}"] = Rule(out, (kind, kind, out), "wide({0}) * wide({1}) + {2}")
    return rows


BITWISE = {
    "bfe.u32": Rule("u32", ("u32", "u32", "u32"), "extract({0}, {1}, {2}, False)"),
    "bfe.s32": Rule("u32", ("u32", "u32", "u32"), "extract({0}, {1}, {2}, True)"),
    "prmt.b32": Rule("u32", ("u32", "u32", "u32"), "permute({0}, {1}, {2})"),
    "dp4a.u32.u32": Rule("u32", ("u32", "u32", "u32"), "dot4({0}, {1}, {2})"),
    "popc.b32": Rule("u32", ("u32",), "np.bitwise_count({0}).astype(U32)"),
    "brev.b32": Rule("u32", ("u32",), "reverse_bits({0})"),
    "clz.b32": Rule("u32", ("u32",), "leading_zeros({0})"),
    "bfind.u32": Rule("u32", ("u32",), "U32(31) - leading_zeros({0})"),
    "shf.l.wrap.b32": Rule("u32", ("u32", "u32", "u32"), "funnel_left({0}, {1}, {2})"),
    "shf.r.wrap.b32": Rule("u32", ("u32", "u32", "u32"), "funnel_right({0}, {1}, {2})"),
    "mul.hi.u32": Rule("u32", ("u32", "u32"), "high32({0}, {1})"),
    "mul.hi.s32": Rule("i32", ("i32", "i32"), "high32({0}, {1})"),
    "and.pred": Rule("pred", ("pred", "pred"), "{0} & {1}"),
    "or.pred": Rule("pred", ("pred", "pred"), "{0} | {1}"),
    "xor.pred": Rule("pred", ("pred", "pred"), "{0} ^ {1}"),
    "not.pred": Rule("pred", ("pred",), "~{0}"),
    "cvta.param.u64": Rule("u64", ("u64",), "{0}"),
    "cvta.to.global.u64": Rule("u64", ("u64",), "{0}"),
    "cvta.global.u64": Rule("u64", ("u64",), "{0}"),
    "cvta.shared.u64": Rule("u64", ("u64",), "{0}"),
    "cvta.to.shared::cluster.u64": Rule("u64", ("u64",), "{0}"),
    "cvta.to.shared.u64": Rule("u64", ("u64",), "{0}"),
}


def float_rules(kind: str) -> dict[str, Rule]:
    rows = {
        f"{name}.{kind}": Rule(kind, (kind, kind), f"{{0}} {sign} {{1}}")
        for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"))
    }
    if kind != "f64":
        rows[f"fma.{kind}"] = Rule(kind, (kind, kind, kind), "fma({0}, {1}, {2})")
    return rows


UNARY = {
    "ex2": "np.exp2({0})", "lg2": "np.log2({0})", "rcp": "ONE / {0}", "sqrt": "np.sqrt({0})",
    "rsqrt": "ONE / np.sqrt({0})", "tanh": "np.tanh({0})", "sin": "np.sin({0})",
    "cos": "np.cos({0})", "neg": "-{0}", "abs": "np.abs({0})",
}  # fmt: skip
FLOAT = {f"{name}.f32": Rule("f32", ("f32",), text) for name, text in UNARY.items()}
FLOAT |= {
    "div.f32": Rule("f32", ("f32", "f32"), "{0} / {1}"),
    "min.f32": Rule("f32", ("f32", "f32"), "np.fmin({0}, {1})"),
    "max.f32": Rule("f32", ("f32", "f32"), "np.fmax({0}, {1})"),
    "min.NaN.f32": Rule("f32", ("f32", "f32"), "np.minimum({0}, {1})"),
    "max.NaN.f32": Rule("f32", ("f32", "f32"), "np.maximum({0}, {1})"),
    "copysign.f32": Rule("f32", ("f32", "f32"), "np.copysign({1}, {0})"),
    "add.sat.f32": Rule("f32", ("f32", "f32"), "saturated({0} + {1})"),
    "mul.sat.f32": Rule("f32", ("f32", "f32"), "saturated({0} * {1})"),
    "fma.sat.f32": Rule("f32", ("f32",) * 3, "saturated(fma({0}, {1}, {2}))"),
}


# Directed rounding: sums with what f64 leaves of them, then to f32.
WIDE = [f"{{{i}}}.astype(F64)" for i in range(3)]
EXACT = {
    "add": f"two_sum({WIDE[0]}, {WIDE[1]})",
    "sub": f"two_sum({WIDE[0]}, -{WIDE[1]})",
    "mul": f"({WIDE[0]} * {WIDE[1]}, ZERO_f64)",
    "fma": f"two_sum({WIDE[0]} * {WIDE[1]}, {WIDE[2]})",
}
FLOAT |= {
    f"{name}.{mode}.f32": Rule(
        "f32", ("f32",) * (2 + (name == "fma")), f"directed({sum_}, {mode!r})"
    )
    for name, sum_ in EXACT.items()
    for mode in ("rm", "rp", "rz")
}

HALF = {
    "cvt.f32.f16": Rule("f32", ("f16",), "{0}.astype(F32)"),
    "cvt.f32.bf16": Rule("f32", ("u16",), "from_bf16({0})"),
    "cvt.f16.f32": Rule("u16", ("f32",), "to_f16({0})"),
    "cvt.bf16.f32": Rule("u16", ("f32",), "to_bf16({0})"),
    "cvt.f16x2.f32": Rule("u32", ("f32", "f32"), "f16x2({0}, {1})"),
    "cvt.bf16x2.f32": Rule("u32", ("f32", "f32"), "bf16x2({0}, {1})"),
    "cvt.relu.f16x2.f32": Rule("u32", ("f32", "f32"), "f16x2(relu({0}), relu({1}))"),
    "cvt.relu.bf16x2.f32": Rule("u32", ("f32", "f32"), "bf16x2(relu({0}), relu({1}))"),
    "tanh.bf16x2": Rule("u32", ("u32",), "bf16_word(np.tanh(bf16_lanes({0})))"),
    "tanh.f16x2": Rule("u32", ("u32",), "np.tanh({0}.view(F16)).view(U32)"),
    "ex2.bf16x2": Rule("u32", ("u32",), "bf16_word(np.exp2(bf16_lanes({0})))"),
    "fma.bf16x2": Rule(
        "u32", ("u32",) * 3, "bf16_word(fma(bf16_lanes({0}), bf16_lanes({1}), bf16_lanes({2})))"
    ),
    "fma.f16x2": Rule(
        "u32",
        ("u32",) * 3,
        "fma({0}.view(F16), {1}.view(F16), {2}.view(F16)).astype(F16).view(U32)",
    ),
}
for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*")):
    HALF |= {
        f"{name}.bf16x2": Rule(
            "u32", ("u32", "u32"), f"bf16_word(bf16_lanes({{0}}) {sign} bf16_lanes({{1}}))"
        ),
        f"{name}.f16x2": Rule(
            "u32", ("u32", "u32"), f"({{0}}.view(F16) {sign} {{1}}.view(F16)).view(U32)"
        ),
        # sm_100: the first operand in half precision, the sum in f32
        f"{name}.f32.bf16": Rule("f32", ("u16", "f32"), f"from_bf16({{0}}) {sign} {{1}}"),
        f"{name}.f32.f16": Rule("f32", ("f16", "f32"), f"{{0}}.astype(F32) {sign} {{1}}"),
    }

RULES: dict[str, Rule] = {
    **integer_rules(16),
    **integer_rules(32),
    **integer_rules(64),
    **wide_rules(16),
    **wide_rules(32),
    **BITWISE,
    **float_rules("f32"),
    **float_rules("f64"),
    **float_rules("f32x2"),
    **FLOAT,
    **HALF,
}
# min and max of three operands, sm_100
THREE = {
    f"{name}.f32": Rule("f32", ("f32",) * 3, f"np.{call}(np.{call}({{0}}, {{1}}), {{2}})")
    for name, call in {
        "min": "fmin", "max": "fmax", "min.NaN": "minimum", "max.NaN": "maximum",
    }.items()
}  # fmt: skip


def rule_for(parts: list[str], operand_count: int) -> Rule | None:
    """The rule of an opcode with this many operands, the result among them."""
    key = key_of(parts)
    rule = (THREE.get(key) if operand_count == 4 else None) or RULES.get(key)
    return rule if rule and len(rule.ins) == operand_count - 1 else None
