#!/bin/sh
# torch 2.15.0: one clamp at its bound has the slopes 0, 1/2 and 1, by how the bound is written.
#
# Guessed: clamp(max=1) has one slope at x = 1, whether 1 is a number or a 0-dim tensor, and
# whether or not that tensor wants a gradient.
# Seen: 0 by numbers; 1/2 by a tensor, with no second half for anyone if the bound is a constant;
# 1 where both bounds are tensors and equal to x. Two equal tensors above x give all of the
# gradient to the lower one, although the value is also that of the upper one. eager, aot_eager and
# inductor agree. Up to 2.13 the first four were 1.
# Source: derivatives.yaml of torch 2.15.0 (clamp.Tensor), pytorch/pytorch#184574.
#
# Seen:
#   eager      number 0.0  tensor 0.5  constant tensor 0.5  tensors 0.5  equal tensors 1.0
#   (the same for aot_eager and inductor)
#   two equal tensors above x: x 0.0, lower 1.0, upper 0.0
# It makes its own environment, or takes FINDINGS_PYTHON=/path/to/python with the pinned versions.
# PYTHON names the interpreter to build from: 3.11 or later; Inductor wants a C++ compiler.
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

import torch

one = torch.tensor(1.0)


def forms(number, tensor, constant, between, equal, bound):
    return (
        number.clamp(max=1.0),
        tensor.clamp(max=bound),
        constant.clamp(max=one),
        between.clamp(-bound, bound),
        equal.clamp(bound, bound),
    )


def slopes(function):
    leaves = [torch.ones(4, requires_grad=True) for _ in range(5)]
    bound = torch.tensor(1.0, requires_grad=True)
    total = sum(y.sum() for y in function(*leaves, bound))
    return [g[0].item() for g in torch.autograd.grad(total, leaves)]


words = ("number", "tensor", "constant tensor", "tensors", "equal tensors")
for backend in ("eager", "aot_eager", "inductor"):
    torch.compiler.reset()
    seen = slopes(torch.compile(forms, backend=backend))
    print(backend, *(f"{word} {slope}" for word, slope in zip(words, seen)))
    assert seen == [0.0, 0.5, 0.5, 0.5, 1.0]

x = torch.zeros(4, requires_grad=True)
low, high = (torch.ones(4, requires_grad=True) for _ in range(2))
grads = torch.autograd.grad(x.clamp(low, high).sum(), (x, low, high))
print("two equal tensors above x:", *(g[0].item() for g in grads))
assert [g[0].item() for g in grads] == [0.0, 1.0, 0.0]
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
