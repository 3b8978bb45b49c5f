#!/bin/sh
# torch 2.15.0: at 0 the slope of prelu is its weight in reverse mode, and 1 in forward mode.
#
# Guessed: one slope, that of leaky_relu with the same number, which is the weight in both modes.
# Seen: torch.func.vjp gives 0.25, torch.func.jvp gives 1.0; leaky_relu gives 0.25 twice.
# A gradient check that compares the modes fails at a point that ReLU networks reach exactly.
# Source: none found.
#
# Seen:
#   prelu       reverse 0.25  forward 1.0
#   leaky_relu  reverse 0.25  forward 0.25
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
import torch.nn.functional as F
from torch.func import jvp, vjp

x, weight = torch.zeros(1), torch.tensor([0.25])
functions = {"prelu": lambda x: F.prelu(x, weight), "leaky_relu": lambda x: F.leaky_relu(x, 0.25)}
seen = {}
for name, function in functions.items():
    reverse = vjp(function, x)[1](torch.ones(1))[0].item()
    forward = jvp(function, (x,), (torch.ones(1),))[1].item()
    seen[name] = (reverse, forward)
    print(name, "reverse", reverse, "forward", forward)
assert seen == {"prelu": (0.25, 1.0), "leaky_relu": (0.25, 0.25)}
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
