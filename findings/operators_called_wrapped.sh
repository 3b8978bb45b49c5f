#!/bin/sh
# torch 2.15.0: inside of torch.compile, a TorchFunctionMode gets functions named "wrapped" for
# `1 - x`, `x ** 2`, `2 // x` and `1 / x`. Eager gives it `__rsub__`, `pow`, `__rfloordiv__` and
# `__rdiv__`. A mode that looks functions up by name takes another way where it is compiled.
#
# Guessed: a mode that Dynamo inlines sees the functions that eager's dispatch gives it.
# Seen: the names differ, and are all the same, so they cannot be told apart. `add` keeps its name.
# Source: torch/_tensor.py of torch 2.15.0 hands on a closure `wrapped`, which functools.wraps has
# renamed; the name is lost where Dynamo traces into it. torch 2.11.0 gives eager's names in both.
#
# Seen:
#   eager ['__rsub__', 'pow', '__rfloordiv__', 'add', '__rdiv__', 'add']
#   compiled ['wrapped', 'wrapped', 'wrapped', 'add', 'wrapped', 'add']
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
from torch.overrides import TorchFunctionMode


class Names(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen.append(function.__name__)
        return function(*args, **(kwargs or {}))


def model(x):
    with Names():
        return (1 - x) ** 2 + 2 // x + 1 / x


results = {}
for how, function in {"eager": model, "compiled": torch.compile(model, backend="eager")}.items():
    seen = []
    results[how] = function(torch.full((3,), 2.0)), seen
    print(how, seen)
assert torch.equal(results["eager"][0], results["compiled"][0])
assert results["eager"][1] == ["__rsub__", "pow", "__rfloordiv__", "add", "__rdiv__", "add"]
assert results["compiled"][1] == ["wrapped", "wrapped", "wrapped", "add", "wrapped", "add"]
EOF
CUDA_VISIBLE_DEVICES="" "$python" "$folder/check.py"
