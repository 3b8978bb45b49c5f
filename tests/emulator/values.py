"""Value instructions that a row of rules.py cannot say: moves, selections, comparisons,
conversions, and what lanes of a warp tell each other."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import kinds
from .homes import members
from .ptx import BITS, identifier
from .rules import COMPARE

if TYPE_CHECKING:
    from .translate import Translator

Emitter = Callable[["Translator", list[str], list[str]], None]
EMITTERS: dict[str, Emitter] = {}


def registering(table: dict[str, Emitter]) -> Callable[..., Callable[[Emitter], Emitter]]:
    """A decorator that puts what it decorates into the table, under the names it has."""

    def emits(*names: str) -> Callable[[Emitter], Emitter]:
        def register(function: Emitter) -> Emitter:
            table.update(dict.fromkeys(names, function))
            return function

        return register

    return emits


emits = registering(EMITTERS)


def kind_of(t: "Translator", text: str, ptx_type: str) -> str:
    """The kind in which an untyped value is moved: that of its register, if it has that width."""
    home = t.home(text)
    if home and t.kernel.registers[identifier(text)] == BITS[ptx_type]:
        return home
    return kinds.PLAIN[BITS[ptx_type]]


@emits("mov")
def move(t: "Translator", op: list[str], a: list[str]) -> None:
    if a[1].startswith("{"):
        pack(t, op, a[0], members(a[1]))
    elif a[0].startswith("{"):
        unpack(t, op, members(a[0]), a[1])
    else:
        kind = kind_of(t, a[0], op[-1])
        t.write(a[0], kind, t.read(a[1], kind))


def pack(t: "Translator", op: list[str], target: str, parts: list[str]) -> None:
    bits = BITS[op[-1]]
    if (bits, len(parts)) == (64, 2) and t.home(target) == "f32x2":
        low, high = (t.read(part, "f32") for part in parts)
        t.write(target, "f32x2", f"pair({low}, {high})")
        return
    name = {(64, 2): "pack64", (32, 2): "pack32", (64, 4): "quarters"}[bits, len(parts)]
    half = kinds.PLAIN[bits // len(parts)]
    sources = ", ".join(t.read(part, half) for part in parts)
    t.write(target, kinds.PLAIN[bits], f"{name}({sources})")


def unpack(t: "Translator", op: list[str], parts: list[str], source: str) -> None:
    bits = BITS[op[-1]]
    if (bits, len(parts)) == (64, 2) and t.home(source) == "f32x2":
        value = t.read(source, "f32x2")
        for i, part in enumerate(parts):
            t.write(part, "f32", f"{value}[{i}]")
        return
    half = kinds.PLAIN[bits // len(parts)]
    value = t.read(source, kinds.PLAIN[bits])
    for i, part in enumerate(parts):
        t.write(part, half, f"{value}.view({half.upper()})[{i}::{len(parts)}].copy()")


@emits("selp")
def select(t: "Translator", op: list[str], a: list[str]) -> None:
    kind = kind_of(t, a[0], op[-1])
    picked, other = t.read(a[1], kind), t.read(a[2], kind)
    t.write(a[0], kind, f"where({t.read(a[3], 'pred')}, {picked}, {other})")


@emits("setp")
def compare(t: "Translator", op: list[str], a: list[str]) -> None:
    """setp.cmp[.bool].type p[|q], a, b[, c]"""
    how, ptx_type = op[1], op[-1]
    kind = kinds.PTX[ptx_type]
    x, y = t.read(a[1], kind), t.read(a[2], kind)
    if ptx_type == "bf16":
        x, y = f"from_bf16({x})", f"from_bf16({y})"
    result = comparison(how, x, y, ptx_type.endswith(("f32", "f64", "f16")))
    if join := next((word for word in op[2:-1] if word in ("and", "or", "xor")), None):
        sign = {"and": "&", "or": "|", "xor": "^"}[join]
        result = f"({result} {sign} {t.read(a[3], 'pred')})"
    target, *second = a[0].split("|")
    t.line(f"u = {result}")
    t.write(target, "pred", "u")
    if second:
        if join:
            raise NotImplementedError("two destinations with a boolean operation")
        t.write(second[0], "pred", "~u")


def comparison(how: str, x: str, y: str, is_float: bool) -> str:
    unordered = f"(np.isnan({x}) | np.isnan({y}))"
    if how in ("num", "nan"):
        return f"~{unordered}" if how == "num" else unordered
    if how in COMPARE:
        plain = f"({x} {COMPARE[how]} {y})"
        return f"({plain} & ~{unordered})" if is_float and how == "ne" else plain
    if is_float and how.endswith("u") and how[:-1] in COMPARE:
        plain = f"({x} {COMPARE[how[:-1]]} {y})"
        return plain if how == "neu" else f"({plain} | {unordered})"
    raise NotImplementedError(f"comparison {how}")


@emits("cvt")
def convert(t: "Translator", op: list[str], a: list[str]) -> None:
    """Between integers, and between integers and f32; the half precisions are rules."""
    out, source = op[-2:]
    out_kind, value = kinds.PTX[out], t.read(a[1], kinds.PTX[source])
    mode = next((part for part in op if part in ("rni", "rzi", "rmi", "rpi")), None)
    if "sat" in op and (out, source) != ("f32", "f32"):
        raise NotImplementedError("saturation of integers")
    if source in ("f32", "f64") and out in ("f32", "f64"):
        value = f"ROUND[{mode!r}]({value})" if mode else value
        value = f"saturated({value})" if "sat" in op else value
        t.write(a[0], out_kind, f"{value}.astype({out.upper()})")
    elif source in ("f32", "f64"):
        kind = f"np.dtype(np.{'u' if out[0] == 'u' else ''}int{out[1:]})"
        t.write(a[0], out_kind, f"to_integer({value}, {mode or 'rzi'!r}, {kind})")
    else:
        if source in ("s8", "u8", "b8"):
            value = f"{value}.astype({'I8' if source == 's8' else 'U8'})"
        t.write(a[0], out_kind, f"{value}.astype({out_kind.upper()})")


@emits("lop3")
def logic(t: "Translator", op: list[str], a: list[str]) -> None:
    sources = ", ".join(t.read(text, "u32") for text in a[1:4])
    t.write(a[0], "u32", f"lookup3({sources}, {int(a[4], 0)})")


@emits("shfl")
def shuffle(t: "Translator", op: list[str], a: list[str]) -> None:
    target, *inside = a[0].split("|")
    kind = kind_of(t, target, "b32")
    b, c = t.read(a[2], "u32"), t.read(a[3], "u32")
    t.line(f"u, v = shuffle(LANE, {op[2]!r}, {t.read(a[1], kind)}, {b}, {c})")
    t.write(target, kind, "u")
    if inside:
        t.write(inside[0], "pred", "v")


@emits("elect")
def elect(t: "Translator", op: list[str], a: list[str]) -> None:
    leader, chosen = a[0].split("|")
    t.line("u, v = elect(LANE, m)")
    t.write(leader, "u32", "u")
    t.write(chosen, "pred", "v")


@emits("vote")
def vote(t: "Translator", op: list[str], a: list[str]) -> None:
    value = t.read(a[1], "pred")
    if op[2] == "ballot":
        t.write(a[0], "u32", f"ballot({value}, m)")
    else:
        t.write(a[0], "pred", f"vote({op[2]!r}, {value}, m)")


@emits("redux")
def reduce(t: "Translator", op: list[str], a: list[str]) -> None:
    kind = kinds.PTX[op[-1]]
    t.write(a[0], kind, f"reduce_warp({op[2]!r}, {t.read(a[1], kind)}, m)")


@emits("activemask")
def active(t: "Translator", op: list[str], a: list[str]) -> None:
    t.write(a[0], "u32", "ballot(ALL, m)")


def vector(op: list[str], text: str) -> tuple[list[str], int]:
    """The registers of a load or store, and the bytes of each."""
    width = next((int(part[1:]) for part in op if re.fullmatch(r"v\d", part)), 1)
    registers = members(text)
    if len(registers) != width:
        raise NotImplementedError(f"{len(registers)} registers for .v{width}")
    return registers, BITS[op[-1]] // 8
