"""Instructions of whole warps on matrices: wgmma, and ldmatrix and stmatrix, which move four of
8 x 8 numbers of 16 bits."""

import re
from typing import TYPE_CHECKING

from .homes import members
from .values import Emitter

if TYPE_CHECKING:
    from .translate import Translator


def transposed(op: list[str]) -> bool:
    """Whether the four matrices are."""
    trans = "trans" in op
    if [x for x in op[1:] if x != "trans"][:5] != ["sync", "aligned", "m8n8", "x4", "shared"]:
        raise NotImplementedError("only four matrices")
    return trans


def load_matrices(t: "Translator", op: list[str], a: list[str]) -> None:
    call = f"C.shared.load_matrices(G, {t.address(a[1], 'u32')}, {transposed(op)}, m)"
    t.write_all(members(a[0]), "u32", call)


def store_matrices(t: "Translator", op: list[str], a: list[str]) -> None:
    data = "".join(f"{t.read(text, 'u32')}, " for text in members(a[1]))
    address = t.address(a[0], "u32")
    t.line(f"C.shared.store_matrices(G, {address}, ({data}), {transposed(op)}, m)")


def warpgroup(t: "Translator", op: list[str], a: list[str]) -> None:
    if op[1] == "fence":
        t.line("pass")
    elif op[1] == "commit_group":
        t.line("C.products.commit(G, m)")
    elif op[1] == "wait_group":
        t.line(f"C.products.wait(G, {int(a[0])}, m)")
    elif op[1] == "mma_async":
        warpgroup_multiply(t, op, a)
    else:
        raise NotImplementedError(op[1])


def warpgroup_multiply(t: "Translator", op: list[str], a: list[str]) -> None:
    """{d}, a or {a}, b, accumulate, sign of a, of b, [a is MN-major,] b is MN-major"""
    shape = re.fullmatch(r"m64n(\d+)k16", op[4])
    if shape is None or op[5] != "f32" or op[6:] not in (["f16"] * 2, ["bf16"] * 2):
        raise NotImplementedError("wgmma other than of 16 bits into f32")
    signs, (*a_major, b_major) = a[4:6], (bool(int(x)) for x in a[6:])
    if signs != ["1", "1"]:
        raise NotImplementedError("wgmma of negated operands")
    sums = members(a[0])
    before = "".join(f"{t.read(text, 'f32')}, " for text in sums)
    if a[1].startswith("{"):
        first = "(" + "".join(f"{t.read(text, 'u32')}, " for text in members(a[1])) + ")"
    else:
        first = t.read(a[1], "u64")
    form = (int(shape.group(1)), op[6], any(a_major), b_major)
    operands = f"({before}), {first}, {t.read(a[2], 'u64')}, {t.read(a[3], 'pred')}"
    t.write_all(sums, "f32", f"C.products.multiply(G, {operands}, {form!r}, m)")


EMITTERS: dict[str, Emitter] = {
    "ldmatrix": load_matrices, "stmatrix": store_matrices, "wgmma": warpgroup,
}  # fmt: skip
