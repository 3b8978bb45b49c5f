#!/bin/sh
# torch 2.15.0 on a CPU: the gradient of hardtanh at NaN depends on where in its tensor an element
# stands, and torch.compile has another one again.
#
# Guessed: a tensor of 33 equal elements has 33 equal gradients.
# Seen: hardtanh gives 0 to elements that vector instructions process, and 1 to the last one, which
# is left over. elu and hardswish give NaN and 1, hardshrink 0 and 1. Inductor gives 1 to all.
# relu (1 at NaN) and clamp(min=0) (0 at NaN), the same function otherwise, do not depend on it;
# since 2.14 their slopes agree at 0, but not at NaN.
# Source: none found.
#
# Seen:
#   hardtanh    first 0.0  last 1.0  compiled, first 1.0
#   hardshrink  first 0.0  last 1.0  compiled, first 1.0
#   elu         first nan  last 1.0  compiled, first 1.0
#   hardswish   first nan  last 1.0  compiled, first 1.0
#   relu        first 1.0  last 1.0  compiled, first 1.0
#   clamp       first 0.0  last 0.0  compiled, first 0.0
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
import torch.nn.functional as F

functions = {
    "hardtanh": F.hardtanh,
    "hardshrink": F.hardshrink,
    "elu": F.elu,
    "hardswish": F.hardswish,
    "relu": F.relu,
    "clamp": lambda x: x.clamp(min=0),
}


def every(*xs):
    return [function(x) for function, x in zip(functions.values(), xs)]


def gradients(run):
    xs = [torch.full((33,), torch.nan, requires_grad=True) for _ in functions]
    return torch.autograd.grad(sum(y.sum() for y in run(*xs)), xs)


seen = {}
for name, eager, compiled in zip(functions, gradients(every), gradients(torch.compile(every))):
    seen[name] = f"{eager[0].item()} {eager[-1].item()} {compiled[0].item()}"
    print(name, "first, last, compiled:", seen[name])
assert seen == {
    "hardtanh": "0.0 1.0 1.0",
    "hardshrink": "0.0 1.0 1.0",
    "elu": "nan 1.0 1.0",
    "hardswish": "nan 1.0 1.0",
    "relu": "1.0 1.0 1.0",
    "clamp": "0.0 0.0 0.0",
}
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
