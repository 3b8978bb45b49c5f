"""A process that launches CuTe kernels through the stand-in runtime, and says what it launched and
whether it compiled: `python -m tests.kernels.disk_program attention words`. Run by
`test_cute_disk`."""

import json
import sys

import torch

from gdpa_inductor._compat import inductor
from gdpa_inductor.kernels.cute import disk, launch
from gdpa_inductor.kernels.cute.backward.launch import backward
from gdpa_inductor.kernels.cute.config import StoredTiling
from gdpa_inductor.kernels.cute.launcher import word_launcher
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.ops import operands_of
from tests.emulator import standin

ARCH = Sm90Config.arch
WORDS = ("Ranking", "Summation", "TileSums")  # whose arguments are the same in every process
KINDS = (*WORDS, "TileSums", "HopperForward", "HopperBackward")
compiled, launched = [], []
export = disk.exported


def counted(value) -> bytes:
    compiled.append(next(kind for kind in KINDS if kind in value.function_name))
    return export(value)


def noted(event: standin.Launch) -> None:
    plain = any(name in event.kernel for name in WORDS)
    arguments = [int.from_bytes(event.argument(i, 4), "little") for i in range(3 if plain else 0)]
    launched.append([event.kernel, event.grid, event.block, event.shared_bytes, arguments])


def attention() -> None:
    """Forward and backward of a jagged problem; nothing computes."""
    offsets = torch.tensor([0, 100, 300], dtype=torch.int32)
    matrices = [torch.zeros(300, 2, 64, dtype=torch.bfloat16) for _ in range(3)]
    o = operands_of(*matrices, [], [], "silu(s)", offsets, offsets, 200, 200)
    options = {"ctas": 4, "stream": 0, "kind": Sm90Config}
    backward(launch.forward(o, **options), o, (True,) * 3, **options)


def ranking() -> None:
    word_launcher("ranking", 4, "int32", ARCH)(16, 32, 3, 0)


def words() -> None:
    ranking()
    summation = ("float32", "bfloat16", 0.5, ARCH, False)
    word_launcher("backward.summation", 9, *summation)(48, 64, 80, 8, 1, 1, 1, 1, 0)
    tiles = ("tiles", (1.0, True, True, StoredTiling(64, 64, True)), "bfloat16", "float32", ARCH)
    word_launcher("backward.jagged_sums", 14, *tiles)(80, 96, 112, *[1] * 10, 0)


PARTS = {"attention": attention, "ranking": ranking, "words": words}

if __name__ == "__main__":
    disk.exported = counted
    standin.next_library(1)
    inductor.cache_folder()  # whoever calls the kernels has imported Inductor
    with standin.launches(noted) as failures:
        for part in sys.argv[1:]:
            PARTS[part]()
    assert not failures, failures
    cutlass = "cutlass" in sys.modules
    print(json.dumps({"compiled": compiled, "launched": launched, "cutlass": cutlass}))
