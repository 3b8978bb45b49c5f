#!/bin/sh
# nvidia-cutlass-dsl 4.8.1: a kernel for another GPU compiles on a machine without one, but not if
# it is to run twice on a multiprocessor.
#
# Guessed: launch(min_blocks_per_mp=2) only sets the attribute of that name for ptxas, so that a
# kernel for sm_90a compiles wherever cute.compile runs. It does with 0 and 1.
# Seen: with 2 it needs CUDA's driver, and raises DynamicLibNotFoundError without one. The DSL asks
# the present device how much shared memory a multiprocessor has, for the preferred carve-out. That
# is not the device of --gpu-arch. With preferred_smem_carveout given, nobody is asked.
# Source: cutlass/cutlass_dsl/cutlass.py of the package, "Add optional maximum shared memory".
#
# It makes its own environment, or takes FINDINGS_PYTHON=/path/to/python with the pinned versions.
# PYTHON names the interpreter to build from: 3.11 or later.
# Exit status: 0 if it is still so, 1 if not, 2 if the versions are others or there is a driver.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
    "${PYTHON:-python3}" -m venv "$folder/venv"
    python=$folder/venv/bin/python
    "$python" -m pip install -q nvidia-cutlass-dsl==4.8.1
fi
cat > "$folder/check.py" <<'END'
import ctypes.util
from importlib.metadata import version

if version("nvidia-cutlass-dsl") != "4.8.1" or ctypes.util.find_library("cuda"):
    print("this finding is of nvidia-cutlass-dsl 4.8.1 on a machine without CUDA's driver")
    raise SystemExit(2)

from cutlass import Int32, cute
from cutlass.cute.runtime import make_fake_compact_tensor


@cute.kernel
def kernel(out: cute.Tensor):
    out[cute.arch.thread_idx()[0]] = Int32(1)


def outcome(**options):
    @cute.jit
    def host(out: cute.Tensor):
        kernel(out).launch(grid=(1, 1, 1), block=(32, 1, 1), **options)

    out = make_fake_compact_tensor(Int32, (32,))
    try:
        cute.compile(host, out, options="--gpu-arch=sm_90a")
    except Exception as error:
        return type(error).__name__
    return "compiled"


seen = {n: outcome(min_blocks_per_mp=n) for n in (0, 1, 2)}
seen["2, with a carve-out"] = outcome(min_blocks_per_mp=2, preferred_smem_carveout=100)
print(seen)
assert list(seen.values()) == ["compiled", "compiled", "DynamicLibNotFoundError", "compiled"]
END
"$python" "$folder/check.py"
