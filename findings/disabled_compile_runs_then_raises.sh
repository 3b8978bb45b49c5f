#!/bin/sh
# torch 2.15.0: TORCH_COMPILE_DISABLE=1 makes fullgraph=True raise, after the function has run.
#
# Guessed: both switches, TORCH_COMPILE_DISABLE=1 and TORCHDYNAMO_DISABLE=1, give eager PyTorch.
# Seen: only the second does. Under the first a function compiled with fullgraph=True runs eagerly,
# with what it does to the world, and its call then raises a RuntimeError: no frame was compiled.
# A caller who catches the error and calls the original has run it twice.
# Source: torch/_dynamo/config.py and eval_frame.py; pytorch issue 181247 has the error, with 2.12.
#
# Seen:
#   TORCH_COMPILE_DISABLE  plain: ok, ran once   fullgraph: RuntimeError, ran once
#   TORCHDYNAMO_DISABLE    plain: ok, ran once   fullgraph: ok, ran once
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
cat > "$folder/check.py" <<'END'
import sys
from importlib.metadata import version

if version("torch").split("+")[0] != "2.15.0":
    print("this finding is of torch 2.15.0")
    raise SystemExit(2)

import torch


def outcome(fullgraph):
    runs = []

    def step(x):
        runs.append(1)
        return x + 1

    compiled = torch.compile(step, backend="eager", fullgraph=fullgraph)
    try:
        compiled(torch.ones(2))
        said = "ok"
    except RuntimeError as error:
        said = "no compiled frames" in str(error) and "RuntimeError" or repr(error)
    return f"{said}, ran {len(runs)}"


seen = outcome(False), outcome(True)
print(sys.argv[1], "plain:", seen[0], " fullgraph:", seen[1])
raised = sys.argv[1] == "TORCH_COMPILE_DISABLE"
assert seen == ("ok, ran 1", "RuntimeError, ran 1" if raised else "ok, ran 1")
END
for switch in TORCH_COMPILE_DISABLE TORCHDYNAMO_DISABLE; do
    env CUDA_VISIBLE_DEVICES="" "$switch=1" "$python" "$folder/check.py" "$switch"
done
