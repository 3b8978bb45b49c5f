#!/bin/sh
# torch 2.15.0: a function that calls scan compiles with fullgraph=True, and raises without it.
#
# Guessed: fullgraph=True only forbids graph breaks, so what compiles with it compiles without it.
# Seen: without it Inductor raises DataDependentOutputException for aten._local_scalar_dense, for a
# running sum with no data-dependent value of its own. aot_eager takes both.
# Source: torch/_higher_order_ops/scan.py is a prototype by its own words; no issue found.
#
# Seen:
#   inductor   fullgraph: ok  without: DataDependentOutputException
#   aot_eager  fullgraph: ok  without: ok
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
from torch._higher_order_ops.scan import scan


def running_sum(start, rows):
    return scan(lambda carry, row: (carry + row, carry.sum()), start, rows)


def outcome(backend, fullgraph):
    torch.compiler.reset()
    compiled = torch.compile(running_sum, backend=backend, fullgraph=fullgraph)
    try:
        compiled(torch.zeros(3), torch.randn(4, 3))
    except Exception as error:
        name = "DataDependentOutputException"
        return name if name in str(error) else repr(error)
    return "ok"


seen = {b: [outcome(b, full) for full in (True, False)] for b in ("inductor", "aot_eager")}
print("with fullgraph and without:", seen)
assert seen == {"inductor": ["ok", "DataDependentOutputException"], "aot_eager": ["ok", "ok"]}
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
