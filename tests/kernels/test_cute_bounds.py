"""Tables of bounds of operands on tiles, by the kernel, on the emulator."""

import itertools
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import bounds
from gdpa_inductor.kernels.cute.config import TileSize, table_dtype
from gdpa_inductor.kernels.cute.replay import Record
from gdpa_inductor.program.expr import AXES
from gdpa_inductor.program.score_mod import Aux
from tests.emulator import recording, run

from .cute_memory import tables

ARCH = "sm_100a"  # that of the emulator
SIZE = TileSize(16, 24)
WHOLE = ("b", "h", "q_idx", "kv_idx")
KINDS = {
    torch.bool: "b", torch.uint8: "i", torch.int32: "i", torch.int64: "i", torch.float32: "f",
    torch.bfloat16: "f", torch.float16: "f",
}  # fmt: skip


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    if dtype == torch.bool:
        return torch.rand(shape) < 0.99
    wide = torch.randn(shape) * (1e12 if dtype == torch.int64 else 40.0)
    return wide.abs().to(dtype) if dtype == torch.uint8 else wide.to(dtype)


def table_of(
    operand: torch.Tensor, access: tuple[str, ...], size: TileSize = SIZE
) -> bounds.TileBounds:
    """The table, in memory that begins as something else."""
    results = []
    with recording(), tables() as room:
        program = SimpleNamespace(aux=[Aux(KINDS[operand.dtype], access)])
        o = SimpleNamespace(aux=[operand], program=program)
        plan = SimpleNamespace(example=o, config=SimpleNamespace(arch=ARCH))
        form = bounds._table_form(plan, 0, size)
        plan.once = lambda *_: form

        def start() -> None:
            room.used = 0
            results.append(bounds.table(plan, o, (0, size), 0, Record(fails=True)))

        run(start, [operand, room.bytes])
    assert results[-1].room.dtype == getattr(
        torch, table_dtype(KINDS[operand.dtype], str(operand.dtype).removeprefix("torch."))
    )
    return results[-1]


def expected(operand: torch.Tensor, access: tuple[str, ...], size: TileSize) -> torch.Tensor:
    """Tile by tile, of the operand with all dimensions."""
    operand = operand.squeeze([dim for dim, x in enumerate(access) if x == "-"])
    known = [x for x in access if x != "-"]
    whole = operand.permute([known.index(x) for x in AXES if x in known])
    for dim, axis in enumerate(AXES):
        whole = whole if axis in access else whole.unsqueeze(dim)
    whole = whole.to(torch.int64) if not whole.is_floating_point() else whole.double()
    heights = [size.rows if "q_idx" in access else 1, size.cols if "kv_idx" in access else 1]
    counts = [-(-extent // height) for extent, height in zip(whole.shape[2:], heights)]
    result = whole.new_empty(*whole.shape[:2], *counts, 2)
    for i, j in itertools.product(*map(range, counts)):
        tile = whole[:, :, i * heights[0] : (i + 1) * heights[0]]
        tile = tile[..., j * heights[1] : (j + 1) * heights[1]].flatten(2)
        result[:, :, i, j, 0], result[:, :, i, j, 1] = tile.amin(2), tile.amax(2)
    return result


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_bounds_are_those_of_the_elements(dtype: torch.dtype) -> None:
    operand = drawn((2, 3, 40, 50), dtype)
    truth = expected(operand, WHOLE, SIZE)
    assert torch.equal(table_of(operand, WHOLE).room.to(truth.dtype), truth)


@pytest.mark.parametrize(
    ("shape", "access"),
    [
        ((33, 25), ("q_idx", "kv_idx")),
        ((25, 33), ("kv_idx", "q_idx")),
        ((3, 130), ("b", "kv_idx")),
        ((2, 47), ("h", "q_idx")),
        ((5, 40, 2, 25), ("b", "q_idx", "h", "kv_idx")),
        ((3, 1, 16, 24), ("b", "-", "q_idx", "kv_idx")),
        ((1, 1), ("q_idx", "kv_idx")),
    ],
    ids=str,
)
def test_any_access(shape: tuple[int, ...], access: tuple[str, ...]) -> None:
    operand = drawn(shape, torch.float32)
    result = table_of(operand, access)
    truth = expected(operand, access, SIZE)
    assert torch.equal(result.room.double(), truth)
    for letter, step in zip(AXES, result.strides):
        assert bool(step) == (letter in access and truth.shape[AXES.index(letter)] > 1)


@pytest.mark.parametrize("size", [TileSize(64, 128), TileSize(128, 128), TileSize(96, 80)], ids=str)
def test_tiles_of_kernels(size: TileSize) -> None:
    operand = drawn((200, 300), torch.bfloat16)
    access = ("q_idx", "kv_idx")
    table = table_of(operand, access, size)
    assert torch.equal(table.room.double(), expected(operand, access, size))


def test_parts_of_an_operand() -> None:
    """Whatever lies beside them is not read."""
    whole = torch.full((90, 90), torch.nan)
    whole[7:57, 3:83:2] = drawn((50, 40), torch.float32)
    part = whole[7:57, 3:83:2]
    access = ("q_idx", "kv_idx")
    assert torch.equal(table_of(part, access).room.double(), expected(part, access, SIZE))


def test_what_an_operand_is_expanded_along_its_table_lacks() -> None:
    operand = drawn((3, 1, 50), torch.bool).expand(3, 40, 50)
    result = table_of(operand, ("b", "q_idx", "kv_idx"))
    assert result.room.shape == (3, 1, 1, 3, 2)
    assert result.strides[2] == 0


def test_a_nan_makes_its_tile_nan() -> None:
    operand = torch.zeros(40, 50)
    operand[20, 30] = torch.nan
    result = table_of(operand, ("q_idx", "kv_idx")).room[0, 0]
    assert result[1, 1].isnan().all()
    assert result.isnan().sum() == 2
