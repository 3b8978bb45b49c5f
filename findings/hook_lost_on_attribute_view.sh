#!/bin/sh
# torch 2.13.0: compiled, a hook on `x.mT`, `x.T` or `x.H` of an argument is lost.
#
# Guessed: a view is a view. A hook on `x.mT` does what one on `x.transpose(-2, -1)` does.
# Seen: the gradient is a third of eager's, already with backend="eager", without a graph break, an
# error or a warning. Views by methods and by slices are right. It does not matter whether the view
# is used before the hook or after it. torch 2.11.0 does the same; 2.15.0 is right.
# Source: the graph has `getattr(x, "mT")` and no `register_hook`. Dynamo gives an attribute of an
# argument a source, and for what has a source it registers the hook after the graph has run: on the
# view that reading the attribute again makes. (This cause is a conclusion.)
#
# Seen:
#   mT 0.333
#   T 0.333
#   H 0.333
#   transpose 1.0
#   view 1.0
#   slice 1.0
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
cat > "$folder/check.py" <<'EOF'
from importlib.metadata import version

if version("torch").split("+")[0] != "2.13.0":
    print("this finding is of torch 2.13.0")
    raise SystemExit(2)

import torch

views = {
    "mT": lambda x: x.mT,
    "T": lambda x: x.T,
    "H": lambda x: x.H,
    "transpose": lambda x: x.transpose(-2, -1),
    "view": lambda x: x.view(x.shape),
    "slice": lambda x: x[0:],
}


def gradient(function):
    x = torch.ones(2, 2, requires_grad=True)
    return torch.autograd.grad(function(x).sum(), x)[0]


ratios = {}
for name, view in views.items():

    def hooked(x):
        y = view(x)
        y.register_hook(lambda grad: grad * 3)
        return y.cos()

    torch._dynamo.reset()
    compiled = torch.compile(hooked, backend="eager", fullgraph=True)
    ratios[name] = round((gradient(compiled) / gradient(hooked)).mean().item(), 3)
    print(name, ratios[name])
lost = dict.fromkeys(("mT", "T", "H"), 0.333)
raise SystemExit(int(ratios != dict.fromkeys(views, 1.0) | lost))
EOF
CUDA_VISIBLE_DEVICES="" "$python" -W ignore "$folder/check.py"
