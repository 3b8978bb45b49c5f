#!/bin/sh
# torch 2.15.0: a compiled function with a jagged nested tensor as input never hits AOTAutograd's
# cache, and logs a traceback that looks like an error.
#
# Guessed: a NestedTensor is torch's own subclass, so its compiles are cached like others.
# Seen: a warning with a traceback, "Failed to pickle cache key", ends in "Can't pickle local object
# 'WeakValueDictionary.__init__.<locals>.remove'", and the counter says autograd_cache_bypass. A
# second warning advises the user to implement _stable_hash_for_caching on NestedTensor. The same
# function of the values alone is saved.
# Source: torch/_functorch/_aot_autograd/autograd_cache.py of torch 2.15.0; no issue found.
#
# Seen:
#   values  {'autograd_cache_miss': 1, 'autograd_cache_saved': 1}
#   nested  {'autograd_cache_bypass': 1}
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
from torch._dynamo.utils import counters


def counted(x):
    torch.compiler.reset()
    counters.clear()
    torch.compile(lambda x: x * 2)(x)
    return {k: v for k, v in counters["aot_autograd"].items() if k.startswith("autograd_cache")}


values, offsets = torch.randn(8, 4), torch.tensor([0, 3, 8])
plain = counted(values)
nested = counted(torch.nested.nested_tensor_from_jagged(values, offsets))
print("values", plain)
print("nested", nested)
assert plain.get("autograd_cache_saved") == 1
assert nested == {"autograd_cache_bypass": 1}
EOF
CUDA_VISIBLE_DEVICES="" TORCHINDUCTOR_CACHE_DIR=$folder/cache "$python" "$folder/check.py"
