#!/bin/sh
# ptxas of Triton 3.9.0 (CUDA 12.9, and 13.4 for Blackwell): a float that is rounded to bf16 and
# widened again takes another instruction than one that is only rounded.
#
# Guessed: cvt.rn.bf16.f32 is F2FP, which packs two 16-bit floats, with zero as the other one. What
# is done with the result does not matter.
# Seen: so it is if the 16 bits are stored. If they are shifted back to a float, ptxas chooses
# F2F.BF16.F32, from sm_80 to sm_120. F2F is a conversion of the unit of tanh and exp2. As the upper
# half of cvt.rn.bf16x2.f32, whose lower half is zero, the same float takes F2FP alone, and no shift.
# On an H200 the round trip with an addition took a warp 7.8 clocks of its scheduler by F2F, as a tanh
# did (7.3), and 2.8 by F2FP.
# A round trip through fp16 takes F2FP too. Triton's own `x.to(tl.bfloat16).to(tl.float32)` becomes
# F2F in this way.
# Source: docs.nvidia.com/nsight-compute, metrics decoder, on the XU pipe: special functions, and
# conversions between integers and floats.
#
# Seen, by target:
#   sm_80, sm_90a, sm_100a, sm_120: stored F2FP, widened F2F.BF16.F32, upper half F2FP, fp16 F2FP
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
    "$python" -m pip install -q triton==3.9.0
fi
cat > "$folder/check.py" <<'END'
import re
import subprocess
import sys
from importlib.metadata import distribution, version
from pathlib import Path

if version("triton").split("+")[0] != "3.9.0":
    print("this finding is of triton 3.9.0")
    raise SystemExit(2)

folder = Path(sys.argv[1])
tools = Path(str(distribution("triton").locate_file("triton/backends/nvidia/bin")))
ENTRY = """
.visible .entry {name}(.param .u64 from, .param .u64 to)
{{
    .reg .u64 a, b; .reg .f32 x; .reg .b16 h; .reg .b32 w;
    ld.param.u64 a, [from]; ld.param.u64 b, [to]; ld.global.f32 x, [a];
    {body}
    ret;
}}
"""
BODIES = {
    "stored": "cvt.rn.bf16.f32 h, x; st.global.b16 [b], h;",
    "widened": "cvt.rn.bf16.f32 h, x; cvt.u32.u16 w, h; shl.b32 w, w, 16; st.global.b32 [b], w;",
    "upper_half": "cvt.rn.bf16x2.f32 w, x, 0f00000000; st.global.b32 [b], w;",
    "fp16": "cvt.rn.f16.f32 h, x; cvt.f32.f16 x, h; st.global.f32 [b], x;",
}


def conversions(name, target):
    blackwell = target in ("sm_100a", "sm_120")
    head = f".version {'8.7' if blackwell else '8.0'}\n.target {target}\n.address_size 64\n"
    source, binary = folder / "k.ptx", folder / "k.cubin"
    source.write_text(head + ENTRY.format(name=name, body=BODIES[name]))
    tool = tools / ("ptxas-blackwell" if blackwell else "ptxas")
    subprocess.run([tool, f"-arch={target}", source, "-o", binary], check=True)
    text = subprocess.run(
        [tools / "cuobjdump", "-sass", binary], check=True, capture_output=True, text=True
    ).stdout
    return re.findall(r"\b(F2FP?)\.", text)


for target in ("sm_80", "sm_90a", "sm_100a", "sm_120"):
    seen = {name: conversions(name, target) for name in BODIES}
    print(target, seen)
    assert seen.pop("widened") == ["F2F"]
    assert all(x == ["F2FP"] for x in seen.values())
END
"$python" "$folder/check.py" "$folder"
