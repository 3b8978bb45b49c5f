"""Host time of a launch: the package's launcher beside a TVM FFI function of the same kernel.

    python docs/lab/ffi_launch.py

It needs a Hopper GPU, CuTe DSL and apache-tvm-ffi. Medians of alternating launches in µs, with a
synchronization after every 20.
"""

import statistics
import time
from collections.abc import Callable

import torch
from cutlass import cute
from torch import Tensor

from gdpa_inductor.kernels.cute import launch, plan
from gdpa_inductor.kernels.cute.compiler import example
from gdpa_inductor.kernels.cute.launch import longest_first
from gdpa_inductor.kernels.cute.replay import Record
from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import ScoreMod

PROGRAM = ScoreMod.parse("silu(mul(s,0.125))")
CTAS, LAUNCHES = 132, 3000


def matrices(*shape: int) -> list[Tensor]:
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def dense() -> Operands[Tensor]:
    return Operands(*matrices(2, 2, 256, 64), [], [], PROGRAM)


def jagged() -> Operands[Tensor]:
    cu = torch.tensor([0, 500, 1200, 1600], device="cuda", dtype=torch.int32)
    return Operands(*matrices(1600, 2, 64), [], [], PROGRAM, cu, cu, 700, 700)


def launches(o: Operands[Tensor], out: Tensor) -> tuple[dict[str, Callable[[], None]], Tensor]:
    """The launches that are compared, all of which write `out`, and the order of the sequences.

    The last element of the order counts the sequences that CTAs have taken.
    """
    own = plan.plan_of(o, True, True, None)
    config, sizes = own.config, own.sizes
    stream = torch.cuda.current_stream().cuda_stream
    order = longest_first(o, config, stream, Record(fails=True)) if o.jagged else None
    options = f"--gpu-arch={config.arch} --enable-tvm-ffi"
    function = cute.compile(launch.kernel_of(config), *example(config), options=options)
    tensors = (o.query, o.key, o.value, out)
    before = tuple(plan.strides(x) for x in tensors)
    run = launch.launcher_in(own)

    def launcher() -> None:
        run(own.call_words(o, [out], order, CTAS, stream), own.form_words([out]))

    def ffi(strides: tuple[tuple[int, int, int], ...]) -> None:
        function(
            tuple(x.data_ptr() for x in tensors),
            (*sizes, *plan.totals(o.query, o.key), sizes[0]),
            strides,
            *[None if x is None else x.data_ptr() for x in (o.cu_seqlens_q, o.cu_seqlens_k)],
            None if order is None else order.data_ptr(),
            None,
            None,
            CTAS,
            stream,
        )

    compared = {
        "launcher": launcher,
        "TVM FFI": lambda: ffi(tuple(plan.strides(x) for x in tensors)),
        "TVM FFI, strides computed before": lambda: ffi(before),
    }
    return compared, torch.zeros(1, device="cuda") if order is None else order


def main() -> None:
    for name, o in (("dense", dense()), ("jagged", jagged())):
        out = torch.zeros_like(o.query)
        (compared, order), outputs, times = launches(o, out), [], {}
        for run in compared.values():
            out.zero_()
            order[-1] = 0
            run()
            outputs.append(out.clone())
        assert all(torch.equal(x, outputs[0]) for x in outputs) and outputs[0].any()
        for number in range(LAUNCHES):
            if number % 20 == 0:
                torch.cuda.synchronize()
            for which, run in compared.items():
                start = time.perf_counter()
                run()
                times.setdefault(which, []).append((time.perf_counter() - start) * 1e6)
        medians = {which: round(statistics.median(x), 1) for which, x in times.items()}
        print(name, medians)


if __name__ == "__main__":
    main()
