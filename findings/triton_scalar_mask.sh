#!/bin/sh
# Triton 3.9.0: the interpreter refuses a mask that comes from a comparison of scalars, also after
# `&` with a block; the compiler takes both, and the interpreter of 3.8.0 took both.
#
# Guessed: the interpreter takes what the compiler takes, or says that a block is wanted. A mask
# `(pid < n) & (offsets < BLOCK)` has the shape of a block, so it is fine in any case.
# Seen: both forms raise "mask has unsupported dtype" in the interpreter, and both compile for
# sm_80. A store of one element with the same scalar as mask is fine.
# Source: none found.
#
# Seen:
#   scalar mask      interpreter: mask has unsupported dtype  compiler: ok
#   scalar & block   interpreter: mask has unsupported dtype  compiler: ok
#   one element      interpreter: ok                          compiler: ok
# It makes its own environment, or takes FINDINGS_PYTHON=/path/to/python with the pinned versions.
# PYTHON names the interpreter to build from: 3.11 or later.
# Exit status: 0 if it is still so, 1 if not, 2 if the versions are others.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
    "${PYTHON:-python3}" -m venv "$folder/venv"
    python=$folder/venv/bin/python
    PIP_CONSTRAINT=/dev/null "$python" -m pip install -q torch==2.15.0 triton==3.9.0 numpy==2.4.6
fi
cat > "$folder/check.py" <<'EOF'
from importlib.metadata import version

if version("torch").split("+")[0] != "2.15.0":
    print("this finding is of torch 2.15.0")
    raise SystemExit(2)
if version("triton").split("+")[0] != "3.9.0":
    print("this finding is of triton 3.9.0")
    raise SystemExit(2)

import os
import sys

interprets = len(sys.argv) > 1
os.environ["TRITON_INTERPRET"] = "1" if interprets else "0"
import torch
import triton
import triton.language as tl


@triton.jit
def scalar(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.program_id(0) < n)


@triton.jit
def both(x, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, 1.0, mask=(tl.program_id(0) < n) & (offsets < BLOCK))


@triton.jit
def element(x, n, BLOCK: tl.constexpr):
    tl.store(x, 1.0, mask=tl.program_id(0) < n)


def outcome(kernel):
    try:
        if interprets:
            kernel[(1,)](torch.zeros(4), 3, 4)
        else:
            source = triton.compiler.ASTSource(kernel, {"x": "*fp32", "n": "i32"}, {"BLOCK": 4})
            triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", 80, 32))
    except Exception as error:
        return "refused" if "mask has unsupported dtype" in str(error) else repr(error)
    return "ok"


seen = [outcome(kernel) for kernel in (scalar, both, element)]
print("interpreter" if interprets else "compiler", seen)
assert seen == (["refused", "refused", "ok"] if interprets else ["ok", "ok", "ok"])
EOF
export CUDA_VISIBLE_DEVICES="" TRITON_CACHE_DIR="$folder/cache"
"$python" "$folder/check.py" interpret
"$python" "$folder/check.py"
