#!/bin/sh
# torch 2.13.0: while one thread compiles, a compiled function that another thread calls may raise.
#
# Guessed: a thread that calls what is compiled already has nothing to do with a thread that
# compiles something else; at most it waits for Dynamo's lock.
# Seen: it raises "you are using FX to symbolically trace a dynamo-optimized function". The flag
# that torch.fx sets while it traces is one of the process, and AOTAutograd traces by torch.fx in
# every compile. Serving by threads meets it at each new shape. torch 2.14 keeps a flag per thread.
# Source: torch/fx/_symbolic_trace.py (`_is_fx_tracing_flag`, from 2.14 on `_is_fx_tracing_tls`) and
# torch/_dynamo/eval_frame.py, which asks it at each call.
#
# Seen:
#   before, while another thread traces, after: ok, RuntimeError, ok
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
    PIP_CONSTRAINT=/dev/null "$python" -m pip install -q torch==2.13.0 numpy==2.4.6
fi
cat > "$folder/check.py" <<'END'
import threading
from importlib.metadata import version

if version("torch").split("+")[0] != "2.13.0":
    print("this finding is of torch 2.13.0")
    raise SystemExit(2)

import torch

compiled = torch.compile(lambda x: x + 1, backend="eager")
tracing, called = threading.Event(), threading.Event()


def outcome():
    try:
        compiled(torch.ones(2))
        return "ok"
    except RuntimeError as error:
        return "RuntimeError" if "symbolically trace" in str(error) else repr(error)


def model(x):
    tracing.set()
    called.wait()
    return x * 2


outcomes = [outcome()]
other = threading.Thread(target=torch.fx.symbolic_trace, args=(model,))
other.start()
tracing.wait()
outcomes.append(outcome())
called.set()
other.join()
outcomes.append(outcome())
print("before, while another thread traces, after:", ", ".join(outcomes))
assert outcomes == ["ok", "RuntimeError", "ok"]
END
env CUDA_VISIBLE_DEVICES="" "$python" "$folder/check.py"
