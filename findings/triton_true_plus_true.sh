#!/bin/sh
# Triton 3.9.0: the sum of two comparisons that hold is False, but tl.sum of the same counts them.
#
# Guessed: (a > 0) + (b > 0) counts, as in torch, numpy and tl.sum, or is "or" as for numpy's
# booleans, which the interpreter of 3.8.0 gave.
# Seen: a comparison is an integer of one bit, so 1 + 1 wraps round to 0, in the interpreter since
# 3.9. tl.sum widens to int32 first. Casting the result comes too late.
# Source: a comment in triton/runtime/interpreter.py of 3.9.0, which names
# triton-lang/triton#10919 and says that GPUs do so too.
#
# Seen:
#   a > 0 plus b > 0, cast to int32, for (1, 1), (1, 0), (0, 1), (0, 0): [0, 1, 1, 0]
#   tl.sum of four comparisons that hold: 4
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

os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton
import triton.language as tl


@triton.jit
def add(a, b, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    held = (tl.load(a + at) > 0) + (tl.load(b + at) > 0)
    tl.store(out + at, held.to(tl.int32))


@triton.jit
def count(a, out, BLOCK: tl.constexpr):
    tl.store(out, tl.sum(tl.load(a + tl.arange(0, BLOCK)) > 0, 0).to(tl.int32))


a, b = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
sums, number = torch.zeros(4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
add[(1,)](a, b, sums, 4)
count[(1,)](torch.ones(4), number, 4)
print("sums", sums.tolist(), "tl.sum", number.item())
assert sums.tolist() == [0, 1, 1, 0] and number.item() == 4
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
