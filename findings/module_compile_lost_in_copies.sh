#!/bin/sh
# torch 2.15.0: a copy of a module that compiled itself runs eagerly, and nothing says so.
#
# Guessed: `module.compile()` and `torch.compile(module)` differ in what they return. A copy of
# either stays compiled, as its hooks and its mode of training stay.
# Seen: `copy.deepcopy`, `copy.copy` and pickle keep what torch.compile returned compiled. They drop
# what Module.compile has set, and the copy compiles nothing. nn.TransformerEncoder copies the layer
# that it is given, so an encoder of a layer that was compiled is eager in all layers.
# torch.multiprocessing.spawn pickles what it passes, so workers run eagerly too.
# Source: torch/nn/modules/module.py (`__getstate__` pops `_compiled_call_impl`), since
# https://github.com/pytorch/pytorch/pull/97565
#
# Seen:
#   layer.compile(): compiles 1, its deepcopy 0, copy 0, pickle 0
#   torch.compile(layer): compiles 1, its deepcopy 1, copy 1, pickle 1
#   layers of an encoder made of a compiled layer that compile: 0 of 2
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
import copy
import pickle
from importlib.metadata import version

if version("torch").split("+")[0] != "2.15.0":
    print("this finding is of torch 2.15.0")
    raise SystemExit(2)

import torch
from torch import nn

compiles = []


def counted(gm, inputs):
    compiles.append(gm)
    return gm.forward


torch._dynamo.register_backend(compiler_fn=counted, name="counted")


def layer():
    return nn.TransformerEncoderLayer(4, 1, 8, batch_first=True, dropout=0.0).train()


def compiled(module):
    torch._dynamo.reset()
    compiles.clear()
    module(torch.ones(1, 3, 4))
    return min(len(compiles), 1)


def row(name, module):
    copies = [copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module))]
    counts = [compiled(x) for x in (module, *copies)]
    print("{}: compiles {}, its deepcopy {}, copy {}, pickle {}".format(name, *counts))
    return counts


own = layer()
own.compile(backend="counted")
by_method = row("layer.compile()", own)
by_function = row("torch.compile(layer)", torch.compile(layer(), backend="counted"))
encoder = nn.TransformerEncoder(own, 2)
layers = [compiled(x) for x in encoder.layers]
print(f"layers of an encoder made of a compiled layer that compile: {sum(layers)} of {len(layers)}")
raise SystemExit(int((by_method, by_function, layers) != ([1, 0, 0, 0], [1, 1, 1, 1], [0, 0])))
END
"$python" -W ignore "$folder/check.py"
