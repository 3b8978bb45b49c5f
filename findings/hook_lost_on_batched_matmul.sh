#!/bin/sh
# torch 2.15.0: compiled, a batched matmul that is written in place loses the hook that it had.
#
# Guessed: a hook on a tensor sees the gradient of its value at that time, compiled or not, whatever
# is written into the tensor afterwards.
# Seen: with backend="aot_eager", and so with Inductor, the hook is not applied to the result of
# `@` with more than two dims. The gradient is a third of eager's, without an error or a warning.
# With backend="eager", two dims, torch.bmm, a product of elements, or no write it is right. torch
# 2.13.0 and 2.14.1 do the same.
# Source: matmul reshapes what bmm gives by `_unsafe_view` (aten/src/ATen/native/LinearAlgebra.cpp),
# which AOTAutograd's functional tensors take for a view; a write through a view gives it a new
# place in autograd's graph, and hooks stay with the old one. (This cause is a conclusion.)
#
# Seen:
#   batched matmul: eager backend 1.0, aot_eager 0.333
#   batched matmul, no write: eager backend 1.0, aot_eager 1.0
#   matmul of two dims: eager backend 1.0, aot_eager 1.0
#   bmm: eager backend 1.0, aot_eager 1.0
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
cat > "$folder/check.py" <<'END'
from importlib.metadata import version

if version("torch").split("+")[0] != "2.15.0":
    print("this finding is of torch 2.15.0")
    raise SystemExit(2)

import torch


def thrice(product, writes=True):
    def function(x, y):
        result = product(x, y)
        result.register_hook(lambda grad: grad * 3)
        if writes:
            result.add_(1.0)
        return result

    return function


def norm(function, shape, backend=None):
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, y = (torch.randn(shape, requires_grad=True) for _ in range(2))
    function = function if backend is None else torch.compile(function, backend=backend)
    (grad,) = torch.autograd.grad(function(x, y).square().sum(), x)
    return grad.norm().item()


cases = {
    "batched matmul": (thrice(torch.matmul), (2, 2, 4, 4)),
    "batched matmul, no write": (thrice(torch.matmul, writes=False), (2, 2, 4, 4)),
    "matmul of two dims": (thrice(torch.matmul), (4, 4)),
    "bmm": (thrice(torch.bmm), (2, 4, 4)),
}
ratios = {}
for name, (function, shape) in cases.items():
    right = norm(function, shape)
    ratios[name] = [round(norm(function, shape, x) / right, 3) for x in ("eager", "aot_eager")]
    print("{}: eager backend {}, aot_eager {}".format(name, *ratios[name]))
expected = dict.fromkeys(cases, [1.0, 1.0]) | {"batched matmul": [1.0, 0.333]}
raise SystemExit(int(ratios != expected))
END
"$python" -W ignore "$folder/check.py"
