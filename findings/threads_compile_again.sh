#!/bin/sh
# torch 2.11.0: threads that only call what is compiled make Dynamo compile it again.
#
# Guessed: once functions are compiled for all sizes that they are called with, nothing compiles any
# more, whoever calls. Lookups in Dynamo's cache hold the GIL.
# Seen: 8 functions of one piece of code, each compiled for 4 sizes, are compiled dozens of times
# more under 16 threads; with one thread, or a lock around each call, never. A lookup walks the
# list of the code's entries, evaluates guards and moves the entry that fits to the front. Another
# thread may do so in between, and the walk misses the entry. Each such compile is a pause, and up
# to torch 2.13 calls of other threads raise meanwhile (one_compile_stops_other_threads.sh). torch
# 2.12.0 did it in 2 of 4 runs, 4 and 6 times; 2.13.0 in none of 5, 2.15.0 in none of 2.
# Source: torch/csrc/dynamo/extra_state.cpp (`lookup`, `move_to_front`); a lock is proposed in
# https://github.com/pytorch/pytorch/pull/195355
#
# Seen:
#   compiled before: 32, again by one thread: 0, by 16 threads: 64
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
    PIP_CONSTRAINT=/dev/null "$python" -m pip install -q torch==2.11.0 numpy==2.4.6
fi
cat > "$folder/check.py" <<'END'
import random
import threading
from importlib.metadata import version

if version("torch").split("+")[0] != "2.11.0":
    print("this finding is of torch 2.11.0")
    raise SystemExit(2)

import torch

torch._dynamo.config.recompile_limit = 64
torch._dynamo.config.error_on_nested_fx_trace = False
compiles = []
activations = [torch.sin, torch.cos, torch.tanh, torch.exp] * 2


def backend(gm, inputs):
    compiles.append(gm)
    return gm.forward


def model(number):
    activation = activations[number]
    return lambda x: activation(x) + number


functions = [torch.compile(model(n), backend=backend, dynamic=False) for n in range(8)]
inputs = [torch.ones(size) for size in range(2, 6)]


def call(seed):
    choices = random.Random(seed)
    for _ in range(3000):
        choices.choice(functions)(choices.choice(inputs))


for function in functions:
    for x in inputs:
        function(x)
before = len(compiles)
call(0)
alone = len(compiles) - before
threads = [threading.Thread(target=call, args=(seed,)) for seed in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
together = len(compiles) - before - alone
print(f"compiled before: {before}, again by one thread: {alone}, by 16 threads: {together}")
assert before == 32 and alone == 0 and together > 0
END
env CUDA_VISIBLE_DEVICES="" "$python" "$folder/check.py"
