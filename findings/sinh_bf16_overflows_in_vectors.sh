#!/bin/sh
# torch 2.15.0 on an x86 CPU with AVX2: sinh of bf16 is infinite at 89 in a vector, and finite for
# an element that is left over, and in fp32.
#
# Guessed: sinh in bf16 is sinh in fp32, rounded; 2.24e38 is finite in both types.
# Seen: in a tensor of 33 elements that are 89 the first is inf, the last is 2.246e38. In fp32 all are
# 2.2448e38. With ATEN_CPU_CAPABILITY=default all are finite.
# Source: none found.
#
# Seen:
#   bf16 first inf, last 2.246395312876508e+38; fp32 2.2448063889081578e+38
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

if torch.backends.cpu.get_cpu_capability() != "AVX2":
    raise SystemExit("this finding is of a CPU with AVX2")
half = torch.full((33,), 89.0, dtype=torch.bfloat16).sinh()
single = torch.full((33,), 89.0).sinh()
print("bf16 first", half[0].item(), "last", half[-1].item(), "fp32", single[0].item())
assert half[0].isinf() and half[-1].isfinite() and single.isfinite().all()
EOF
CUDA_VISIBLE_DEVICES="" ATEN_CPU_CAPABILITY=avx2 "$python" "$folder/check.py"
