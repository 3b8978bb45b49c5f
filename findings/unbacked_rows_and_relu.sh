#!/bin/sh
# torch 2.15.0 on a CPU: rows that are marked unbacked go through a batched product, unless
# something element-wise stands before it.
#
# Guessed: mark_unbacked promises that no guard is made on the size, so bmm(relu(x), w) compiles
# wherever bmm(x, w) and relu(x) do.
# Seen: bmm(x, w) compiles, mm(relu(x), w) compiles, bmm(relu(x), w) raises
# GuardOnDataDependentSymNode for Eq(u0, 1) while Inductor lowers the product. The backend
# aot_eager takes all three. The lowering of bmm on a CPU looks at the layout of operands that it
# may still choose, and asks whether a size is 1; an input of the graph has no choice left.
# Source: torch/_inductor/kernel/bmm.py of torch 2.15.0; no issue found.
#
# Seen:
#   inductor   bmm ok  mm of relu ok  bmm of relu GuardOnDataDependentSymNode
#   aot_eager  bmm ok  mm of relu ok  bmm of relu ok
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

functions = {
    "bmm": lambda x, w: torch.bmm(x, w),
    "mm of relu": lambda x, w: torch.mm(x[0].relu(), w[0]),
    "bmm of relu": lambda x, w: torch.bmm(x.relu(), w),
}


def outcome(function, backend):
    torch.compiler.reset()
    x, w = torch.randn(4, 48, 8), torch.randn(4, 8, 16)
    torch._dynamo.decorators.mark_unbacked(x, 1)
    try:
        torch.compile(function, backend=backend, fullgraph=True)(x, w)
    except Exception as error:
        name = "GuardOnDataDependentSymNode"
        return name if name in str(error) else repr(error)
    return "ok"


seen = {b: {n: outcome(f, b) for n, f in functions.items()} for b in ("inductor", "aot_eager")}
print(seen)
assert set(seen["aot_eager"].values()) == {"ok"}
assert [*seen["inductor"].values()] == ["ok", "ok", "GuardOnDataDependentSymNode"]
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
