"""Run the compiled graph of a faked CUDA device on the CPU, its kernels in the Triton interpreter.

The interpreter must be on (`TRITON_INTERPRET=1`) before Triton is imported, so this is a program of
its own:

    echo causal_tail | TRITON_INTERPRET=1 python -m tests.kernels.interpret

reads a case's name from each line, runs it and answers with a line of JSON: "" or what is wrong.
"""

import contextlib
import functools
import json
import random
import sys
import traceback
import types
from unittest import mock

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from gdpa_inductor.lowerings import donation

from . import (
    cases,
    dropout_cases,
    five_matmul_cases,
    jagged_cases,
    one_tile_cases,
    paged_cases,
    render,
    row_sum_cases,
    split_cases,
    table_cases,
    weights_cases,
)


class _LibDevice:
    """libdevice's functions in terms that the interpreter knows."""

    # Looked up at each call: the interpreter patches triton.language while a kernel runs.
    exp = staticmethod(lambda x: tl.exp(x))
    exp2 = staticmethod(lambda x: tl.exp2(x))
    erf = staticmethod(lambda x: tl.erf(x))
    rsqrt = staticmethod(lambda x: tl.rsqrt(x))
    sin = staticmethod(lambda x: tl.sin(x))
    cos = staticmethod(lambda x: tl.cos(x))
    floor = staticmethod(lambda x: tl.floor(x))
    ceil = staticmethod(lambda x: tl.ceil(x))
    isnan = staticmethod(lambda x: x != x)
    log1p = staticmethod(lambda x: tl.log(1.0 + x))
    expm1 = staticmethod(lambda x: tl.exp(x) - 1.0)
    tanh = staticmethod(lambda x: 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0)
    pow = staticmethod(lambda x, y: tl.exp(y * tl.log(x)))
    trunc = staticmethod(lambda x: tl.where(x < 0, tl.ceil(x), tl.floor(x)))
    nearbyint = staticmethod(lambda x: tl.floor(x + 0.5))


INSTRUCTIONS = {
    "mov.b32": lambda x: x,
    "max.NaN.f32": lambda x, y: tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL),
    "min.NaN.f32": lambda x, y: tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL),
    "tanh.approx.f32": _LibDevice.tanh,
    "ex2.approx.f32": _LibDevice.exp2,
    "lg2.approx.f32": lambda x: tl.log2(x),
    "rcp.approx.f32": lambda x: 1.0 / x,
    "cvt.rna.tf32.f32": lambda x: x,
    "cvt.rn.bf16x2.f32": lambda x: x.to(tl.bfloat16).to(tl.float32),
}


def _instruction(asm: str, constraints: str, args: list, **_):
    """Stands for `tl.inline_asm_elementwise`, which the interpreter does not have."""
    return INSTRUCTIONS[asm.split()[0]](*args)


class _Kernel:
    """Stands for what `async_compile.triton` returns."""

    def __init__(self, name: str, source: str) -> None:
        namespace: dict = {}
        path = render.PyCodeCache.write(render.bare(source))[1]
        exec(compile(render.bare(source), path, "exec"), namespace)
        namespace["libdevice"] = _LibDevice
        self.function = namespace[name]
        self.names = self.function.arg_names
        self.is_template = "triton_heuristics.template" in source

    def run(self, *args, stream=None) -> None:
        _addresses.own(args)
        if self.is_template:
            self.function[tuple(args[-3:])](*args[:-3])
            return
        numels = dict(zip(self.names, args, strict=False))
        blocks = {name: self._block(name, numels) for name in self.names if name.endswith("BLOCK")}
        grid = [
            triton.cdiv(int(numels.get(f"{axis}numel", 1)), blocks.get(f"{axis.upper()}BLOCK", 1))
            for axis in "xyz"
        ]
        self.function[tuple(grid)](*args, **blocks)

    def _block(self, name: str, numels: dict) -> int:
        return min(
            64, triton.next_power_of_2(int(numels[f"{name.removesuffix('BLOCK').lower()}numel"]))
        )


def _mend_loop_bounds() -> None:
    """Triton 3.6 makes a loop bound of an array of one element, which NumPy 2.4 refuses; 3.7 does
    not."""
    patch = interpreter._patch_lang_tensor

    def mended(tensor, *scope):
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = mended


def _patch_once() -> None:
    """The interpreter patches the language at each call, of nested functions too, which takes a
    fifth of its time. Here it stays patched."""
    sees_both = types.FunctionType(_patch_once.__code__, {"tl": tl, "core": tl.core})
    interpreter._patch_lang(sees_both)
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()


def _reduce_by_slices() -> None:
    """The interpreter calls a reduction's function for each element; it takes blocks as well."""

    def reduced(self: interpreter.ReduceOps, values: tuple) -> list:
        assert self.axis is not None and not self.keep_dims
        result: tuple = ()
        for i in range(values[0].handle.data.shape[self.axis]):
            part = [self.to_tensor(x.handle.data.take(i, self.axis), x.dtype) for x in values]
            made = self.combine_fn.fn(*result, *part) if result else part
            result = tuple(made) if isinstance(made, (list, tuple)) else (made,)
        return list(result)

    interpreter.ReduceOps.generic_reduce = reduced


class _Addresses:
    """What a kernel may touch: the memory of its operands. The interpreter by itself reads past
    their ends without a word."""

    def __init__(self) -> None:
        self.known: list[tuple[int, int]] = []

    def own(self, args: tuple) -> None:
        """Take these operands for all there are."""
        memory = [t.untyped_storage() for t in args if isinstance(t, torch.Tensor)]
        self.known = [(m.data_ptr(), m.data_ptr() + m.nbytes()) for m in memory]

    def watch(self) -> None:
        """Check every load, store and atomic operation of the interpreter."""
        builder = interpreter.InterpreterBuilder
        for name, pointers, mask in (
            ("create_masked_load", 0, 1), ("create_masked_store", 0, 2), ("create_atomic_rmw", 1, 3)
        ):  # fmt: skip
            setattr(builder, name, self._watched(getattr(builder, name), pointers, mask))

    def _watched(self, touch, pointers: int, mask: int):
        def watched(builder, *args, **kwargs):
            # A comparison of numbers has their dtype here. Triton 3.9 refuses such a mask.
            assert args[mask].data.dtype == bool, "a mask is made of a number, not of a block"
            places = args[pointers].data.astype(np.int64)
            result = places[np.broadcast_to(args[mask].data, places.shape)]
            inside = np.zeros(result.shape, bool)
            for begin, end in self.known:
                inside |= (begin <= result) & (result < end)
            assert inside.all(), f"{(~inside).sum()} addresses are in no operand"
            return touch(builder, *args, **kwargs)

        return watched


_addresses = _Addresses()


def _shuffle_programs() -> None:
    """A GPU runs the programs of a grid in any order: what one writes over another's must show."""
    in_order = interpreter.InterpreterBuilder.set_grid_idx

    @functools.cache
    def order(n: int) -> list[int]:
        return random.Random(n).sample(range(n), n)

    def shuffled(builder, *place):
        in_order(builder, *(order(n)[i] for n, i in zip(builder.grid_dim, place)))

    interpreter.InterpreterBuilder.set_grid_idx = shuffled


class _AsyncCompile:
    def triton(self, name: str, source: str, device_str: str = "") -> _Kernel:
        return _Kernel(name, source)

    def wait(self, scope: dict) -> None:
        pass


def call(source: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a wrapper's source for CPU tensors."""
    import torch._inductor.async_compile
    from torch._inductor.runtime import triton_helpers

    guards = torch._C._dynamo.guards
    with contextlib.ExitStack() as stack:
        for owner, name, value in [
            (torch._inductor.async_compile, "AsyncCompile", _AsyncCompile),
            (torch._C, "_cuda_getCurrentRawStream", lambda *_: 0),
            (guards, "_empty_strided_cuda", _poisoned),
            (triton_helpers, "set_driver_to_gpu", lambda: None),
            (torch.cuda, "_DeviceGuard", lambda *_: contextlib.nullcontext()),
            (torch.cuda, "set_device", lambda *_: None),
            (donation, "last_use", lambda: True),
            (tl, "inline_asm_elementwise", _instruction),
        ]:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        module = types.ModuleType("compiled")
        exec(source, module.__dict__)
        return list(module.call(list(tensors)))


def _poisoned(size, stride, dtype) -> torch.Tensor:
    """A buffer of NaN: what a kernel does not write shows."""
    empty = torch.empty_strided(size, stride, dtype=dtype)
    return empty.fill_(float("nan")) if dtype.is_floating_point else empty.fill_(-7)


def wrong(case: cases.Case) -> str:
    """What is wrong with the results of a case, or ""."""
    try:
        return case.check(call)
    except Exception:
        return traceback.format_exc()


def main() -> None:
    _mend_loop_bounds()
    _patch_once()
    _reduce_by_slices()
    _shuffle_programs()
    _addresses.watch()
    tables = (cases, jagged_cases, five_matmul_cases, one_tile_cases)
    tables += (split_cases, table_cases, paged_cases, row_sum_cases, weights_cases)
    tables += (dropout_cases,)
    every = [case for table in tables for case in table.CASES]
    by_name = {case.name: case for case in every}
    for line in sys.stdin:
        print(json.dumps(wrong(by_name[line.strip()])), flush=True)


if __name__ == "__main__":
    main()
