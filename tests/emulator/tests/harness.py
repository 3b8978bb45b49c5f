"""Runs PTX that a test writes by hand: one CTA or one cluster, no CuTe DSL.

`execute(body, arrays)` wraps the body into a kernel whose parameters are the addresses of the
arrays, in `%rd90`, `%rd91`, ..., and runs it; the arrays hold the result. Registers are declared:
%p<40>, %rs<40>, %r<300>, %rd<100>. `%r299` is the address of dynamic shared memory.
"""

from collections.abc import Sequence

import numpy as np

from tests.emulator import ptx
from tests.emulator.machine import Block, Cta
from tests.emulator.memory import GlobalMemory
from tests.emulator.tensormap import TOLD_BYTES, TensorMap
from tests.emulator.translate import Translator

FIRST = 90  # of the registers that hold the addresses
MAP_BYTES = 128


def kernel_text(body: str, arrays: int, maps: int) -> str:
    parameters = [f".param .u64 a{i}" for i in range(arrays)]
    parameters += [f".param .align 64 .b8 map{i}[{MAP_BYTES}]" for i in range(maps)]
    loads = "\n".join(f"ld.param.u64 %rd{FIRST + i}, [a{i}];" for i in range(arrays))
    return f"""
.version 9.0
.target sm_100a
.extern .shared .align 1024 .b8 smem[];
.visible .entry test({", ".join(parameters)})
{{
.reg .pred %p<40>;
.reg .b16 %rs<40>;
.reg .b32 %r<300>;
.reg .b64 %rd<100>;
{loads}
mov.b32 %r299, smem;
{body}
ret;
}}
"""


def map_bytes(index: int) -> bytes:
    """What stands for the tensor map of this number."""
    return index.to_bytes(TOLD_BYTES, "little")


def cta(
    body: str,
    arrays: Sequence[np.ndarray] = (),
    *,
    threads: int = 32,
    maps: Sequence[TensorMap] = (),
    shared_bytes: int = 64 * 1024,
    schedule: str = "lazy",
    seed: int = 0,
    strict: bool = True,
    fences: bool = True,
    exact_fma: bool = True,
    cluster: int = 1,
) -> Cta:
    """A CTA, or a cluster of so many, that is ready to run the body."""
    kernel = ptx.parse(kernel_text(body, len(arrays), len(maps)))["test"]
    raw = b"".join(array.ctypes.data.to_bytes(8, "little") for array in arrays)
    for index in range(len(maps)):
        raw += bytes(-len(raw) % 64) + map_bytes(index + 1).ljust(MAP_BYTES, b"\0")
    memory = GlobalMemory([array.reshape(-1).view(np.uint8) for array in arrays])
    return Cta(
        Translator(kernel, exact_fma=exact_fma),
        Block((0, 0, 0), (cluster, 1, 1), (threads, 1, 1), shared_bytes, cluster),
        memory,
        raw,
        {map_bytes(i + 1): tensor_map for i, tensor_map in enumerate(maps)},
        schedule,
        seed,
        strict,
        fences,
    )


def execute(body: str, arrays: Sequence[np.ndarray] = (), **options: object) -> Cta:
    value = cta(body, arrays, **options)
    value.run()
    return value


def per_lane(source: int, size: int, register: str) -> str:
    """Address of the thread's element of an array: `register` (64 bits)."""
    return f"""
mov.u32 %r298, %tid.x;
mul.wide.u32 {register}, %r298, {size};
add.s64 {register}, {register}, %rd{FIRST + source};
"""
