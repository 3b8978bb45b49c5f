#!/bin/sh
# torch 2.15.0 on a CPU: torch.gather along dim 0, with an expanded index of int32, reads wrong rows
# and says nothing.
#
# Guessed: an index of int32 reads what the same index of int64 reads, or raises an error.
# Seen: with an index [n, 1] that is expanded to [n, m], gather reads one row again and again. The
# same index, made contiguous, is right. So is scatter_add with the expanded one. Its gradient is
# right too, so it is not that of what the forward read. torch 2.13.0 does the same.
# Source: none found.
#
# Seen: rows [3, 1, 5, 0] are read as [3, 3, 3, 3]
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

table = torch.arange(6.0).expand(4, 6).T.contiguous()
index = torch.tensor([[3], [1], [5], [0]], dtype=torch.int32)
expanded = index.expand(-1, 4)

seen = {
    "int64": torch.gather(table, 0, expanded.long()),
    "int32": torch.gather(table, 0, expanded),
    "int32, contiguous": torch.gather(table, 0, expanded.contiguous()),
}
for name, rows in seen.items():
    print(name, rows[:, 0].tolist())

leaf = table.clone().requires_grad_()
torch.gather(leaf, 0, expanded).sum().backward()
print("gradient", leaf.grad[:, 0].tolist())

assert seen["int64"][:, 0].tolist() == [3, 1, 5, 0]
assert seen["int32"][:, 0].tolist() == [3, 3, 3, 3]
assert torch.equal(seen["int32, contiguous"], seen["int64"])
assert leaf.grad[:, 0].tolist() == [1, 1, 0, 1, 0, 1]
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
