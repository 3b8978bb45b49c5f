#!/bin/sh
# torch 2.13.0 on a CPU: where an int64 product exceeds 63 bits, Inductor's C++ may have other bits
# than eager, which wraps.
#
# Guessed: the high word of a product of two words, `a * b >> 32 & 0xFFFFFFFF`, is right compiled as
# in eager, where int64 wraps. Hashes and counter-based random numbers are written so.
# Seen: it is right where the factor varies along the last dim, which is vectorised. Where it varies
# along an outer dim only, it is computed once for the inner loop in plain C++. There a signed
# overflow is undefined, and the high word is another one (g++ 12.2, x86_64). torch 2.15.0 has the
# right ones. A factor less 2^32, which is negative, does not overflow: it has the same low word, and
# a high word that lacks the other factor.
# Source: none found.
#
# Seen, how many of 40 differ, for a of 0, 1 and 2:
#   outer dim   [0, 40, 40]
#   last dim    [0, 0, 0]
#   less 2^32   [0, 0, 0]
# It makes its own environment, or takes FINDINGS_PYTHON=/path/to/python with the pinned versions.
# PYTHON names the interpreter to build from: 3.10 to 3.14; Inductor wants a C++ compiler.
# Exit status: 0 if it is still so, 1 if not, 2 if the versions are others.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
    "${PYTHON:-python3}" -m venv "$folder/venv"
    python=$folder/venv/bin/python
    PIP_CONSTRAINT=/dev/null "$python" -m pip install -q torch==2.13.0 numpy==2.4.6
fi
cat > "$folder/check.py" <<'EOF'
from importlib.metadata import version

if version("torch").split("+")[0] != "2.13.0":
    print("this finding is of torch 2.13.0")
    raise SystemExit(2)

import torch

LOW, FIRST, SECOND = 0xFFFFFFFF, 0xD2511F53, 0xCD9E8D57
OUTER, LAST = torch.arange(3).view(3, 1), torch.arange(40)


def high_word(a, b):
    return (((a * FIRST & LOW) * SECOND) >> 32 & LOW) ^ b


def without_overflow(a, b):
    low = a * FIRST & LOW
    return ((low * (SECOND - (1 << 32)) >> 32) + low & LOW) ^ b


def differing(function, a, b):
    torch._dynamo.reset()
    return (torch.compile(function)(a, b) != high_word(a, b)).sum(1).tolist()


seen = {
    "outer dim": differing(high_word, OUTER, LAST),
    "last dim": differing(high_word, OUTER.expand(3, 40).contiguous(), LAST),
    "less 2^32": differing(without_overflow, OUTER, LAST),
}
for name, counts in seen.items():
    print(name, counts)
assert seen == {"outer dim": [0, 40, 40], "last dim": [0] * 3, "less 2^32": [0] * 3}, seen
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
