#!/bin/sh
# torch 2.15.0: einsum under inference_mode and autocast is bfloat16, and float32 where any
# TorchDispatchMode is active: FakeTensorMode, a mode that counts FLOPs, one that only looks.
#
# Guessed: a mode that changes nothing sees bfloat16 too, as it does under no_grad.
# Seen: einsum has no autocast kernel; what it is made of is cast. In inference mode nothing above
# the mode decomposes it, so the mode gets einsum whole, and inside a mode autocast is off. The
# product is then computed in float32. matmul has a kernel and is bfloat16 in all cases; tensordot
# does as einsum does.
# Source: aten/src/ATen/autocast_mode.h (the lists of operators), torch/utils/_python_dispatch.py.
#
# Seen, without a mode, under a mode that only calls, as fake tensors:
#   no_grad: einsum bfloat16 bfloat16 bfloat16 matmul bfloat16 bfloat16 bfloat16
#   inference_mode: einsum bfloat16 float32 float32 matmul bfloat16 bfloat16 bfloat16
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
    PIP_CONSTRAINT=/dev/null "$python" -m pip install -q torch==2.15.0 numpy==2.4.6
fi
cat > "$folder/check.py" <<'EOF'
from importlib.metadata import version

if version("torch").split("+")[0] != "2.15.0":
    print("this finding is of torch 2.15.0")
    raise SystemExit(2)

import contextlib

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


class Only(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def dtypes(gradients, mode):
    with mode():
        a, b = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
        with gradients(), torch.autocast("cpu", torch.bfloat16):
            made = torch.einsum("bij,bjk->bik", a, b), torch.matmul(a, b)
    return [str(x.dtype).removeprefix("torch.") for x in made]


MODES = (contextlib.nullcontext, Only, FakeTensorMode)
for gradients in (torch.no_grad, torch.inference_mode):
    einsum, matmul = zip(*(dtypes(gradients, mode) for mode in MODES))
    print(f"{gradients.__name__}: einsum", *einsum, "matmul", *matmul)
    assert set(matmul) == {"bfloat16"}
    changed = "float32" if gradients is torch.inference_mode else "bfloat16"
    assert einsum == ("bfloat16", changed, changed)
EOF
TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
