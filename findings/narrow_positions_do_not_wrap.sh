#!/bin/sh
# torch 2.15.0 on a CPU: Inductor forgets a cast of positions to a narrow integer, where they are
# widened again.
#
# Guessed: (torch.arange(8) * 50).to(torch.uint8).long() wraps at 256, compiled as in eager.
# Seen: compiled, it has 300 and 350. The same with int8, int16 and a negated uint8. With the
# numbers as an input, or with the narrow ones returned as they are, it wraps. torch 2.13.0 does the
# same.
# Source: none found.
#
# Seen:
#   uint8           eager [250, 44, 94]           compiled [250, 300, 350]
#   int8            eager [-6, 44, 94]            compiled [250, 300, 350]
#   int16           eager [-20536, -11536, -2536] compiled [45000, 54000, 63000]
#   negated uint8   eager [71, 34, 253]           compiled [-185, -222, -259]
#   of an input     eager [250, 44, 94]           compiled [250, 44, 94]
#   not widened     eager [250, 44, 94]           compiled [250, 44, 94]
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

PLACES = torch.arange(8)
FUNCTIONS = {
    "uint8": lambda x: (torch.arange(8) * 50).to(torch.uint8).long(),
    "int8": lambda x: (torch.arange(8) * 50).to(torch.int8).long(),
    "int16": lambda x: (torch.arange(8) * 9000).to(torch.int16).long(),
    "negated uint8": lambda x: (-(torch.arange(8) * 37).to(torch.uint8)).long(),
    "of an input": lambda x: (x * 50).to(torch.uint8).long(),
    "not widened": lambda x: (torch.arange(8) * 50).to(torch.uint8),
}

wrong = []
for name, function in FUNCTIONS.items():
    torch._dynamo.reset()
    eager, compiled = function(PLACES), torch.compile(function)(PLACES)
    print(name, "eager", eager[5:].tolist(), "compiled", compiled[5:].tolist())
    if not torch.equal(eager, compiled):
        wrong.append(name)
assert wrong == ["uint8", "int8", "int16", "negated uint8"], wrong
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
