"""Instructions without side effects against their definitions, on edges and random values."""

import math
import struct

import numpy as np
import pytest

from tests.emulator.rules import RULES
from tests.emulator.rules import THREE as THREE_RULES

from .definitions import DEFINITIONS, THREE, wrap
from .harness import execute, per_lane

LANES = 128
BITS = {"pred": 32, "f32": 32, "f64": 64, "f32x2": 64}
APPROXIMATE = ("ex2", "lg2", "sqrt", "rsqrt", "tanh", "sin", "cos", "rcp")
FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, -2.25, math.inf, -math.inf, math.nan, 1e-40, -1e-45, 3.4e38,
    2**-126, 65504.0, 65520.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 2**-23, 12582913.0, 88.0,
]  # fmt: skip


def width(kind: str) -> int:
    return BITS.get(kind) or int(kind[1:])


def draw(kind: str, index: int, generator: np.random.Generator, small: bool) -> list:
    """Values of a kind: edges (in another order for each operand), then random ones."""
    if kind == "pred":
        return [bool(v) for v in generator.integers(0, 2, LANES)]
    if kind == "f32x2":
        halves = [draw("f32", index + i, generator, small) for i in range(2)]
        return list(zip(*halves))
    if kind[0] == "f":
        scale = generator.choice([0.1, 1.0, 30.0], LANES)
        values = [float(np.float32(v)) for v in generator.normal(size=LANES) * scale]
        edges = [float(np.float32(v)) for v in FLOATS]
    else:
        bits = int(kind[1:])
        values = [int.from_bytes(generator.bytes(bits // 8), "little") for _ in range(LANES)]
        if small and index:
            values = [v % 70 for v in values]
        edges = [0, 1, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 31, 32, 2]
        values = [wrap(v, kind) for v in values]
        edges = [wrap(v, kind) for v in edges]
    count = min(len(edges) * (index + 1), LANES)
    order = [edges[i // (index + 1) % len(edges)] for i in range(count)]
    return order + values[count:]


def encode(value: object, kind: str) -> int:
    if kind == "f32x2":
        return encode(value[0], "f32") | encode(value[1], "f32") << 32
    if kind in ("f32", "f64"):
        unsigned, packing = ("<Q", "<d") if kind == "f64" else ("<I", "<f")
        return struct.unpack(unsigned, struct.pack(packing, float(value)))[0]
    return int(value) & ((1 << width(kind)) - 1)


def decode(bits: int, kind: str) -> object:
    if kind == "f32x2":
        return decode(bits & 0xFFFFFFFF, "f32"), decode(bits >> 32, "f32")
    if kind == "f32":
        return float(np.uint32(bits).view(np.float32))
    if kind == "f64":
        return struct.unpack("<d", struct.pack("<Q", bits))[0]
    return bool(bits) if kind == "pred" else wrap(bits, kind)


def program(opcode: str, out: str, ins: tuple[str, ...]) -> str:
    """Loads each operand of the lane, runs the instruction, stores the result."""
    prefix = {16: "%rs", 32: "%r", 64: "%rd"}
    lines, names = [], []
    for i, kind in enumerate(ins):
        name = f"{prefix[width(kind)]}{i + 1}"
        lines += [per_lane(i, 8, "%rd50"), f"ld.global.b{width(kind)} {name}, [%rd50];"]
        if kind == "pred":
            lines.append(f"setp.ne.b32 %p{i + 1}, {name}, 0;")
            name = f"%p{i + 1}"
        names.append(name)
    result = "%p20" if out == "pred" else f"{prefix[width(out)]}20"
    lines.append(f"{opcode} {result}, {', '.join(names)};")
    if out == "pred":
        lines.append("selp.b32 %r20, 1, 0, %p20;")
        result = "%r20"
    lines += [per_lane(len(ins), 8, "%rd50"), f"st.global.b{width(out)} [%rd50], {result};"]
    return "\n".join(lines)


def computed(opcode: str, out: str, ins: tuple[str, ...], values: list[list]) -> list:
    arrays = [
        np.array([encode(v, kind) for v in column], np.uint64) for kind, column in zip(ins, values)
    ]
    arrays.append(np.zeros(LANES, np.uint64))
    execute(program(opcode, out, ins), arrays, threads=LANES)
    return [decode(int(v), out) for v in arrays[-1]]


def same(found: object, expected: object, ulps: int) -> bool:
    if isinstance(found, tuple):
        return all(same(f, e, ulps) for f, e in zip(found, expected))
    if isinstance(found, float):
        if math.isnan(expected) or math.isnan(found):
            return math.isnan(found) and math.isnan(expected)
        if math.isinf(expected) or not ulps:
            return found == expected
        return abs(found - expected) <= ulps * float(np.spacing(np.float32(abs(expected))))
    return found == expected


def check(opcode: str, definition: tuple) -> None:
    out, ins, function = definition
    generator = np.random.default_rng(0)
    shifts = opcode.startswith(("sh", "bfe"))
    values = [draw(kind, i, generator, shifts) for i, kind in enumerate(ins)]
    ulps = 2 if opcode.startswith(APPROXIMATE) and out == "f32" else 0
    for operands, output in zip(zip(*values), computed(opcode, out, ins, values)):
        expected = function(*operands)
        if out[0] in "us":
            expected = wrap(expected, out)
        if opcode.endswith(("x2", "x2.f32")) and out == "u32":
            assert halves_agree(opcode, output, expected), (opcode, operands, output, expected)
        else:
            assert same(output, expected, ulps), (opcode, operands, output, expected)


def halves_agree(opcode: str, found: int, expected: int) -> bool:
    """Bits of packed halves; NaNs have any payload, real functions a last bit of freedom."""
    exponent = 0x7F80 if "bf16" in opcode else 0x7C00
    for shift in (0, 16):
        f, e = found >> shift & 0xFFFF, expected >> shift & 0xFFFF
        nan = [(x & exponent) == exponent and (x & ~exponent & 0x7FFF) != 0 for x in (f, e)]
        close = abs(f - e) <= (1 if opcode.startswith(("tanh", "ex2")) else 0)
        if not (all(nan) or (not any(nan) and close)):
            return False
    return True


@pytest.mark.parametrize("opcode", sorted(DEFINITIONS))
def test_an_instruction_obeys_its_definition(opcode):
    check(opcode, DEFINITIONS[opcode])


@pytest.mark.parametrize("opcode", sorted(THREE))
def test_extremes_of_three(opcode):
    check(opcode, THREE[opcode])


def test_every_rule_has_a_definition():
    assert set(RULES) - set(DEFINITIONS) == set()
    assert set(THREE_RULES) - set(THREE) == set()


@pytest.mark.parametrize("opcode", ["fma.rn.f32", "fma.rn.f32x2"])
def test_quick_fma_rounds_the_product_too(opcode):
    a = np.float32(1 + 2**-12)
    arrays = [np.zeros(32, np.uint64) for _ in range(4)]
    kind = opcode.split(".")[-1]
    value = {"f32": lambda x: x, "f32x2": lambda x: (x, x)}[kind]
    for array, x in zip(arrays, (a, a, -np.float32(a * a))):
        array[:] = encode(value(float(x)), kind)
    body = program(opcode, kind, (kind,) * 3)
    for exact, expected in ((True, float(a) ** 2 - float(np.float32(a * a))), (False, 0.0)):
        execute(body, arrays, exact_fma=exact)
        assert decode(int(arrays[3][0]), kind) == value(expected)


@pytest.mark.parametrize("text", ["add.rna.f32 %r1, %r2, %r3;", "min.f32 %r1, %r2, %r3, %r4, %r5;"])
def test_what_is_not_known_is_an_error_with_its_line(text):
    with pytest.raises(NotImplementedError, match=r"PTX line \d+: (add\.rna|min)"):
        execute(text)


@pytest.mark.parametrize("kind", ["u8", "b8", "s8", "u16", "s16", "u32", "s32"])
@pytest.mark.parametrize("width", [16, 32, 64])
def test_a_load_fills_a_register_that_is_wider(kind: str, width: int):
    size = int(kind[1:]) // 8
    register = {16: "%rs1", 32: "%r1", 64: "%rd1"}[max(width, 8 * size)]
    width = max(width, 8 * size)
    body = "\n".join([
        per_lane(0, size, "%rd50"), f"ld.global.{kind} {register}, [%rd50];",
        per_lane(1, 8, "%rd50"), f"st.global.b{width} [%rd50], {register};",
    ])  # fmt: skip
    stored = np.frombuffer(np.random.default_rng(0).bytes(LANES * size), f"u{size}").copy()
    output = np.zeros(LANES, np.uint64)
    execute(body, [stored, output], threads=LANES)
    wide = stored.view(f"i{size}") if kind[0] == "s" else stored
    assert (output == wide.astype(np.int64).view(np.uint64) & np.uint64((1 << width) - 1)).all()
