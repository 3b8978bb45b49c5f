#!/bin/sh
# torch 2.15.0 on a CPU: compiled by Inductor, `x * 1` returns x itself, where eager returns a copy.
#
# Guessed: what a function returns is new memory wherever it is in eager.
# Seen: x * 1, x + 0, x - 0 and x / 1 return a tensor in the memory of x. So a write into the result
# changes the caller's x. x.clone() and x ** 1 do not.
# Source: none found.
#
# Seen: after `y = f(x); y.add_(1)`, x of zeros is
#   x * 1      eager 0.0 compiled 1.0
#   x + 0      eager 0.0 compiled 1.0
#   x / 1      eager 0.0 compiled 1.0
#   x.clone()  eager 0.0 compiled 0.0
#   x ** 1     eager 0.0 compiled 0.0
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

FUNCTIONS = {
    "x * 1": lambda x: x * 1,
    "x + 0": lambda x: x + 0,
    "x / 1": lambda x: x / 1,
    "x.clone()": lambda x: x.clone(),
    "x ** 1": lambda x: x**1,
}


def after_a_write(function):
    x = torch.zeros(8)
    function(x).add_(1)
    return x[0].item()


changed = []
for name, function in FUNCTIONS.items():
    torch._dynamo.reset()
    eager, compiled = after_a_write(function), after_a_write(torch.compile(function))
    print(name, "eager", eager, "compiled", compiled)
    if eager != compiled:
        changed.append(name)
assert changed == ["x * 1", "x + 0", "x / 1"], changed
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
