"""Counts of instructions, on listings written by hand."""

from tests.kernels.cute_account import Binary, Instruction

from .code import Counts, counted, cut, loops, shortest, step, tile, visible


def listing(*lines: str) -> list[Instruction]:
    """Instructions such as "@P0 BRA 0x20", 16 bytes each."""
    code = []
    for number, line in enumerate(lines):
        guarded = line.startswith("@")
        opcode, _, operands = line.removeprefix("@P0 ").partition(" ")
        code.append(Instruction(16 * number, guarded, opcode, operands))
    return code


BRANCHES = listing(
    "MOV",
    "HGMMA",  # 0x10: the loop
    "@P0 BRA 0x50",
    "FSEL",
    "FSEL",
    "FADD",  # 0x50
    "@P0 BRA 0x10",
    "EXIT",
    "BRA 0x0",  # a wait that tries again, behind the kernel
)


def test_loops_end_with_a_condition():
    (body,) = loops(BRANCHES, ["HGMMA"])
    assert [x.opcode for x in body] == [x.opcode for x in BRANCHES[1:7]]


def test_the_shortest_way_leaves_masks_out():
    (body,) = loops(BRANCHES, ["HGMMA"])
    assert [x.opcode for x in shortest(body, ["HGMMA"])] == ["HGMMA", "BRA", "FADD", "BRA"]


def test_the_shortest_way_leaves_no_product_out():
    body = listing("@P0 BRA 0x30", "FADD", "HGMMA", "FMUL")
    assert [x.opcode for x in shortest(body, ["HGMMA"])] == ["BRA", "FADD", "HGMMA", "FMUL"]


def test_a_branch_without_a_condition_has_one_way():
    body = listing("BRA 0x20", "FADD", "FMUL")
    assert [x.opcode for x in shortest(body, ["FADD"])] == ["BRA", "FMUL"]


def test_counts_by_pipe():
    code = listing("FFMA2", "FFMA", "FMNMX", "MUFU.TANH", "LDTM.x32", "UIADD3", "F2FP.BF16")
    assert counted(code) == Counts(issue=7, mufu=1, fma=3, alu=4)


def test_ways_are_cut_behind_their_waits():
    parts = cut(listing("FADD", "BAR.SYNC", "FMUL", "FMUL", "BAR.ARV"), r"BAR\.SYNC")
    assert [x.issue for x in parts] == [2, 3]


def test_descriptors_between_products_are_not_seen():
    code = listing("HGMMA", "UIADD3", "FADD", "HGMMA", "UIADD3", "BAR.SYNC", "HGMMA")
    assert [x.opcode for x in visible(code)] == [
        *("HGMMA", "FADD", "HGMMA", "UIADD3", "BAR.SYNC", "HGMMA")
    ]


def test_a_tile_is_what_the_outer_loop_has_more():
    code = listing("MOV", "FADD", "HGMMA", "@P0 BRA 0x20", "FMUL", "@P0 BRA 0x10")
    kernel = Binary(code, {}, 0)
    assert [x.opcode for x in step(kernel, ["HGMMA"])] == ["HGMMA", "BRA"]
    assert tile(kernel, ["HGMMA"]) == Counts(issue=3, fma=2)
