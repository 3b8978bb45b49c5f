#!/bin/sh
# fbgemm-gpu-cpu 1.8.0: jagged operators that only copy have no kernel for doubles on a CPU.
#
# Guessed: padding and unpadding of rows take every dtype, or every floating dtype, as they compute
# nothing. So torch.autograd.gradcheck, which asks for doubles, works on a model that pads.
# Seen: `jagged_to_padded_dense`, `dense_to_jagged` and `jagged_dense_elementwise_add` take fp32,
# fp16, bf16, int32 and int64, and raise NotImplementedError for fp64. On the meta device fp64
# passes, so a compiler that traces with fake tensors learns of it at the first run only.
# Source: https://github.com/pytorch/FBGEMM, jagged_tensor_ops_cpu.cpp in
# fbgemm_gpu/src/jagged_tensor_ops: at commit 0257ecc it dispatched by AT_DISPATCH_ALL_TYPES_AND2,
# which has double. FBGEMM_DISPATCH_ALL_TYPES came in its place. (That this lost it is a conclusion.)
#
# Seen:
#   float32: pad ok, unpad ok, add ok
#   float64: pad NotImplementedError, unpad NotImplementedError, add NotImplementedError
#   bfloat16: pad ok, unpad ok, add ok
#   int64: pad ok, unpad ok, add ok
#   float64 on meta: pad ok
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
    PIP_CONSTRAINT=/dev/null "$python" -m pip install -q torch==2.13.0 fbgemm-gpu-cpu==1.8.0 \
        numpy==2.4.6
fi
cat > "$folder/check.py" <<'END'
from importlib.metadata import version

if (version("torch").split("+")[0], version("fbgemm-gpu-cpu")) != ("2.13.0", "1.8.0"):
    print("this finding is of torch 2.13.0 and fbgemm-gpu-cpu 1.8.0")
    raise SystemExit(2)

import fbgemm_gpu  # noqa: F401
import torch

fbgemm, offsets = torch.ops.fbgemm, torch.tensor([0, 2, 5])


def answer(function):
    try:
        function()
    except NotImplementedError as error:
        return type(error).__name__
    return "ok"


def pad(dtype, device="cpu"):
    rows = torch.ones(5, 2, dtype=dtype, device=device)
    return fbgemm.jagged_to_padded_dense(rows, [offsets.to(device)], [3], 0.0)


def unpad(dtype):
    return fbgemm.dense_to_jagged(torch.ones(2, 3, 2, dtype=dtype), [offsets], 5)


def add(dtype):
    rows, dense = torch.ones(5, 2, dtype=dtype), torch.ones(2, 3, 2, dtype=dtype)
    return fbgemm.jagged_dense_elementwise_add(rows, [offsets], dense)


seen = {}
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
    name = str(dtype).removeprefix("torch.")
    answers = [answer(lambda: function(dtype)) for function in (pad, unpad, add)]
    seen[name] = answers
    print(f"{name}: pad {answers[0]}, unpad {answers[1]}, add {answers[2]}")
meta = answer(lambda: pad(torch.float64, "meta"))
print(f"float64 on meta: pad {meta}")
others = all(seen[name] == ["ok"] * 3 for name in ("float32", "bfloat16", "int64"))
still = others and seen["float64"] == ["NotImplementedError"] * 3 and meta == "ok"
raise SystemExit(0 if still else 1)
END
"$python" "$folder/check.py"
