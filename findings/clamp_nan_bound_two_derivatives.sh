#!/bin/sh
# torch 2.15.0: beside a bound that is NaN, reverse and forward mode have different derivatives of
# clamp by one tensor; beside two tensors they agree.
#
# Guessed: both modes have the same Jacobian, as they have at ties (2.14 made those agree).
# Seen: for clamp(x, max=NaN) reverse mode gives a slope of 1 to x and of 1 to the bound, forward
# mode 0 and 1. With a second bound both modes give 1 to x and 0 to the bounds. The value is NaN in
# each case.
# Source: the rows clamp_max.Tensor and clamp.Tensor of derivatives.yaml in torch 2.15.0: the
# reverse rule masks where a comparison holds, the forward rule selects where one holds, and every
# comparison with NaN is false.
#
# Seen:
#   one tensor   reverse [1.0, 1.0]       forward [0.0, 1.0]
#   two tensors  reverse [1.0, 0.0, 0.0]  forward [1.0, 0.0, 0.0]
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

import torch
from torch.func import jvp, vjp

x, low, nan = torch.ones(3), torch.zeros(3), torch.full((3,), torch.nan)


def slopes(function, *at):
    reverse = [g[0].item() for g in vjp(function, *at)[1](torch.ones(3))]
    forward = []
    for number in range(len(at)):
        along = tuple(torch.full_like(a, float(i == number)) for i, a in enumerate(at))
        forward.append(jvp(function, at, along)[1][0].item())
    return reverse, forward


one = slopes(lambda x, high: x.clamp(max=high), x, nan)
two = slopes(lambda x, low, high: x.clamp(low, high), x, low, nan)
print("one tensor   reverse", one[0], "forward", one[1])
print("two tensors  reverse", two[0], "forward", two[1])
assert one == ([1.0, 1.0], [0.0, 1.0])
assert two == ([1.0, 0.0, 0.0], [1.0, 0.0, 0.0])
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
