"""Moves, selections, comparisons, conversions, and what lanes of a warp tell each other."""

import itertools
import math
import operator

import numpy as np
import pytest

from .harness import execute, per_lane

LANE = np.arange(32)
ORDER = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def words(*columns) -> list[np.ndarray]:
    return [np.array(column, np.uint32) for column in columns]


def binary(body: str, a, b) -> np.ndarray:
    """Runs the body on %r1, %r2 of each lane; the result is %r3."""
    arrays = [*words(a, b), np.zeros(32, np.uint32)]
    loads = "".join(
        per_lane(i, 4, "%rd50") + f"ld.global.b32 %r{i + 1}, [%rd50];" for i in range(2)
    )
    execute(loads + body + per_lane(2, 4, "%rd50") + "st.global.b32 [%rd50], %r3;", arrays)
    return arrays[2]


def bits(values) -> np.ndarray:
    return np.array(values, np.float32).view(np.uint32)


@pytest.mark.parametrize("name", sorted(ORDER))
@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_comparisons(name, kind):
    generator = np.random.default_rng(1)
    a, b = (generator.choice([-2, -1, 0, 1, 2], 32) for _ in range(2))
    raw = (a & 0xFFFFFFFF, b & 0xFFFFFFFF)
    a, b = (a, b) if kind == "s32" else raw
    body = f"setp.{name}.{kind} %p1, %r1, %r2; selp.b32 %r3, 7, 9, %p1;"
    assert binary(body, *raw).tolist() == np.where(ORDER[name](a, b), 7, 9).tolist()


@pytest.mark.parametrize("name", [*ORDER, *(f"{name}u" for name in ORDER), "num", "nan"])
def test_comparisons_of_floats(name):
    """With u, of whatever is unordered too."""
    numbers = [0.0, -0.0, 1.0, -1.0, math.inf, math.nan]
    a, b = np.array(list(itertools.product(numbers, numbers))[-32:]).T
    unordered = np.isnan(a) | np.isnan(b)
    plain = {"num": ~unordered, "nan": unordered}
    if name not in plain:
        ordered = ORDER[name[:2]](a, b)
        plain[name] = ordered | unordered if name.endswith("u") else ordered & ~unordered
    body = f"setp.{name}.f32 %p1, %r1, %r2; selp.b32 %r3, 1, 0, %p1;"
    assert binary(body, bits(a), bits(b)).tolist() == plain[name].astype(int).tolist()


CONVERSIONS = [
    ("cvt.rzi.s32.f32", [1.9, -1.9, math.nan, 3e9, -3e9], [1, -1, 0, 2**31 - 1, -(2**31)]),
    ("cvt.rni.s32.f32", [2.5, 3.5, -0.5, -1.5, 0.4], [2, 4, 0, -2, 0]),
    ("cvt.rmi.s32.f32", [1.9, -1.1, 2.0, -0.1, 0.0], [1, -2, 2, -1, 0]),
    ("cvt.rpi.s32.f32", [1.1, -1.9, 2.0, -0.1, 0.0], [2, -1, 2, 0, 0]),
    ("cvt.rzi.u32.f32", [1.9, -1.9, math.nan, 5e9, 4e9], [1, 0, 0, 2**32 - 1, 4 * 10**9]),
]


@pytest.mark.parametrize("opcode, values, expected", CONVERSIONS)
def test_conversions_to_integers(opcode, values, expected):
    padded = values + [0.0] * (32 - len(values))
    result = binary(f"{opcode} %r3, %r1;", bits(padded), LANE)[: len(values)]
    assert result.tolist() == [e & 0xFFFFFFFF for e in expected]


@pytest.mark.parametrize("mode, function", [
    ("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil),
])  # fmt: skip
def test_rounding_to_integral_values(mode, function):
    values = np.linspace(-4, 4, 32, dtype=np.float32)
    result = binary(f"cvt.{mode}.f32.f32 %r3, %r1;", bits(values), LANE).view(np.float32)
    assert result.tolist() == function(values).tolist()


@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_conversions_from_integers(kind):
    values = np.array([0, 1, -1, 2**31 - 1] * 8)
    result = binary(f"cvt.rn.f32.{kind} %r3, %r1;", values & 0xFFFFFFFF, LANE).view(np.float32)
    exact = values if kind == "s32" else values & 0xFFFFFFFF
    assert result.tolist() == exact.astype(np.float32).tolist()


@pytest.mark.parametrize("table", [0x80, 0xFE, 0x96, 0xE2, 0x1B])
def test_logic_of_three(table):
    a, b, c = 0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA
    result = binary(f"lop3.b32 %r3, %r1, %r2, {c:#x}, {table:#x};", [a] * 32, [b] * 32)[0]
    each = range(32)
    index = [(a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1 for i in each]
    assert result == sum((table >> n & 1) << i for i, n in enumerate(index))


@pytest.mark.parametrize("mode, step, clamp, source", [
    ("idx", 5, 31, lambda i: 5),
    ("bfly", 3, 31, lambda i: i ^ 3),
    ("up", 2, 0, lambda i: i - 2 if i >= 2 else i),
    ("down", 2, 31, lambda i: i + 2 if i + 2 < 32 else i),
    # Segments of 8 lanes: mask 0b11000, and a clamp of 7 (0 for up).
    ("idx", 3, 0x1807, lambda i: (i & 24) + 3),
    ("up", 2, 0x1800, lambda i: i - 2 if i % 8 >= 2 else i),
    ("down", 2, 0x1807, lambda i: i + 2 if i % 8 + 2 < 8 else i),
])  # fmt: skip
def test_shuffles(mode, step, clamp, source):
    body = f"""
    shfl.sync.{mode}.b32 %r4|%p1, %r1, {step}, {clamp}, -1;
    selp.b32 %r5, 256, 0, %p1;
    add.u32 %r3, %r4, %r5;
    """
    inside = [source(i) != i or mode == "idx" for i in range(32)]
    expected = [100 + source(i) + 256 * ok for i, ok in enumerate(inside)]
    assert binary(body, LANE + 100, LANE).tolist() == expected


@pytest.mark.parametrize("name, function", [("add", sum), ("max", max), ("min", min)])
def test_reductions_over_a_warp(name, function):
    result = binary(f"redux.sync.{name}.s32 %r3, %r1, -1;", LANE, LANE)
    assert set(result.tolist()) == {function(range(32))}


def test_special_registers():
    out = np.zeros((96, 4), np.uint32)
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %laneid; mov.u32 %r3, %warpid; mov.u32 %r4, %ntid.x;
    mad.wide.u32 %rd1, %r1, 16, %rd90;
    st.global.v4.b32 [%rd1], {%r1, %r2, %r3, %r4};
    """
    execute(body, [out], threads=96)
    thread = np.arange(96)
    assert (out == np.stack([thread, thread % 32, thread // 32, 0 * thread + 96], 1)).all()


INTEGERS = np.array([0x8000, 0x7FFF, 0x18010, 0xFFF0] * 8)
HALVES = np.linspace(1, 2, 32, dtype=np.float32)
SCOPE = "{{ .reg .pred P1; setp.gt.u32 P1, %r1, {0}; @P1 bra DONE; add.u32 %r3, %r3, 1; DONE: }}"
PROGRAMS = {  # instructions, their operands, the result
    "a comparison joins a predicate and has a complement": (
        """
        setp.gt.u32 %p1, %r1, 3; setp.lt.and.u32 %p2, %r2, 20, %p1; setp.eq.u32 %p3|%p4, %r1, 5;
        selp.b32 %r4, 1, 0, %p2; selp.b32 %r5, 2, 0, %p3; selp.b32 %r6, 4, 0, %p4;
        or.b32 %r3, %r4, %r5; or.b32 %r3, %r3, %r6;
        """,
        (LANE, LANE),
        ((LANE > 3) & (LANE < 20)) + 2 * (LANE == 5) + 4 * (LANE != 5),
    ),
    "integers are extended by their sign": (
        """
        cvt.u16.u32 %rs1, %r1; cvt.s32.s16 %r3, %rs1; cvt.s64.s32 %rd1, %r3;
        shr.s64 %rd1, %rd1, 4; cvt.u32.u64 %r3, %rd1;
        """,
        (INTEGERS, LANE),
        ((INTEGERS & 0xFFFF ^ 0x8000) - 0x8000 >> 4) & 0xFFFFFFFF,
    ),
    "of 8 bits": (
        "cvt.u16.u32 %rs1, %r1; cvt.s32.s8 %r3, %rs1;",
        (INTEGERS, LANE),
        ((INTEGERS & 0xFF ^ 0x80) - 0x80) & 0xFFFFFFFF,
    ),
    "words are packed and unpacked": (
        """
        mov.b64 %rd1, {%r1, %r2}; mov.b64 {%r4, %r5}, %rd1; mov.b32 {%rs1, %rs2}, %r5;
        mov.b32 %r6, {%rs2, %rs1}; mov.b64 %rd2, {%rs1, %rs2, %rs1, %rs2}; mov.b64 {_, %r7}, %rd2;
        add.u32 %r3, %r4, %r6; add.u32 %r3, %r3, %r7;
        """,
        (LANE * 3, LANE << 16 | 7),
        LANE * 3 + (7 << 16 | LANE) + (LANE << 16 | 7),
    ),
    "pairs of f32 keep their bits as words": (
        """
        mov.b64 %rd1, {%r1, %r2}; add.rn.f32x2 %rd2, %rd1, %rd1;
        shr.u64 %rd3, %rd2, 32; cvt.u32.u64 %r3, %rd3;
        """,
        (bits(HALVES), bits(-HALVES)),
        bits(-2 * HALVES),
    ),
    "votes": (
        """
        setp.lt.u32 %p1, %r1, 7; vote.sync.ballot.b32 %r3, %p1, -1;
        vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1;
        selp.b32 %r4, 0x10000, 0, %p2; selp.b32 %r5, 0x20000, 0, %p3;
        add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5;
        """,
        (LANE, LANE),
        0 * LANE + 0x7F + 0x10000,
    ),
    "the first active lane is elected": (
        """
        mov.b32 %r3, 99; setp.lt.u32 %p1, %r1, 5; @%p1 bra DONE;
        elect.sync %r3|%p2, -1; @%p2 add.u32 %r3, %r3, 1000;
        DONE:
        """,
        (LANE, LANE),
        np.array([99] * 5 + [1005] + [5] * 26),
    ),
    # Each lane loops as often as its number; after the loop all lanes are counted.
    "divergent loops join again": (
        """
        mov.b32 %r3, 0;
        LOOP: setp.ge.u32 %p1, %r3, %r1; @%p1 bra DONE; add.u32 %r3, %r3, 1; bra LOOP;
        DONE: activemask.b32 %r4; popc.b32 %r4, %r4; mad.lo.u32 %r3, %r4, 100, %r3;
        """,
        (LANE, LANE),
        3200 + LANE,
    ),
    # Two blocks declare the same predicate and the same label.
    "scopes of inline assembly are apart": (
        f"mov.b32 %r3, 0; {SCOPE.format(10)} {SCOPE.format(20)}",
        (LANE, LANE),
        (LANE <= 10).astype(int) + (LANE <= 20),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    body, operands, expected = PROGRAMS[name]
    assert binary(body, *operands).tolist() == expected.tolist()
