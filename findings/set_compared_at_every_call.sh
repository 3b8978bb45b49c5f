#!/bin/sh
# torch 2.15.0: a compiled function that asks whether a name is in a global set compares the whole
# set, element by element, at every call. A frozenset or a dict of the same names costs nothing.
#
# Guessed: the guard is on what was asked, as a hint in the guards' own text says (SET_CONTAINS).
# Seen: beside SET_CONTAINS there is EQUALS_MATCH on all elements. So a call with a set of 20,000
# names takes 0.3 ms where a frozenset takes 0.01, and a name that was never asked for recompiles.
# A package that keeps its tables in sets pays that in each of its users' compiled calls.
# Source: torch/_dynamo/variables/sets.py and guards.py of torch 2.15.0; torch 2.11 does the same;
# no issue found.
#
# Seen, in microseconds a call, on two cores of a server:
#   2 names 11, set 330, frozenset 11, dict 11; graphs after a name was added: 2
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

import statistics
import time

import torch

NAMES = {f"name{i}" for i in range(20_000)} | {"relu"}
graphs = []


def backend(gm, inputs):
    graphs.append(gm)
    return gm.forward


def compiled(names):
    scope = {"torch": torch, "NAMES": names}
    exec("def f(x):\n    return torch.relu(x) if 'relu' in NAMES else -x", scope)
    torch._dynamo.reset()
    return torch.compile(scope["f"], backend=backend)


def microseconds(names):
    function, x, times = compiled(names), torch.ones(3), []
    for _ in range(300):
        start = time.perf_counter()
        function(x)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


few, all_of_a_set = microseconds({"relu", "silu"}), microseconds(set(NAMES))
frozen, keys = microseconds(frozenset(NAMES)), microseconds(dict.fromkeys(NAMES))
own = {"relu"}
function, before = compiled(own), len(graphs)
function(torch.ones(3))
own.add("never asked for")
function(torch.ones(3))
added = len(graphs) - before
print(f"2 names {few:.0f}, set {all_of_a_set:.0f}, frozenset {frozen:.0f}, dict {keys:.0f}")
print(f"graphs after a name was added: {added}")
assert all_of_a_set > 5 * max(frozen, keys) and added == 2
EOF
CUDA_VISIBLE_DEVICES="" "$python" "$folder/check.py"
