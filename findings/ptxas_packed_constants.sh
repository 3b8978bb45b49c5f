#!/bin/sh
# ptxas of Triton 3.9.0 (CUDA 12.9), sm_90a: instructions on pairs of 16-bit floats take no constant
# of 32 bits, though the machine's own instructions do.
#
# Guessed: set.eq.f16x2.f16x2 takes the constant 0x64006400 for two halves of 1024, as and.b32 does.
# Seen: "Arguments mismatch for instruction 'set'". So with add, min and fma of f16x2, and with mul
# and max of bf16x2. With the constant in a register, by mov.b32, they are accepted. Then ptxas puts
# it back: HSET2, HADD2, HMNMX2 and HFMA2 have both halves as immediates, and there is no move.
# dp4a and prmt take the constant.
# Source: none found.
#
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
SOURCE = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 to)
{{
    .reg .u64 a; .reg .b32 w, r;
    ld.param.u64 a, [to]; ld.global.b32 w, [a];
    mov.b32 r, 0x64006400;
    {body}
    st.global.b32 [a], w;
    ret;
}}
"""
PACKED = {
    "set.eq.f16x2.f16x2 w, w, {x};": "HSET2",
    "add.f16x2 w, w, {x};": "HADD2",
    "min.f16x2 w, w, {x};": "HMNMX2",
    "fma.rn.f16x2 w, w, {x}, w;": "HFMA2",
    "mul.rn.bf16x2 w, w, {x};": "HFMA2",
    "max.bf16x2 w, w, {x};": "HMNMX2",
}
OTHERS = ["and.b32 w, w, {x};", "dp4a.u32.u32 w, w, {x}, w;", "prmt.b32 w, w, {x}, 0x5410;"]


def assembled(body):
    """The machine code, or None if ptxas refuses."""
    source, binary = folder / "k.ptx", folder / "k.cubin"
    source.write_text(SOURCE.format(body=body))
    command = [tools / "ptxas", "-arch=sm_90a", source, "-o", binary]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        assert "Arguments mismatch" in done.stderr, done.stderr
        return None
    command = [tools / "cuobjdump", "-sass", binary]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


for body, opcode in PACKED.items():
    assert assembled(body.format(x="0x64006400")) is None, body
    code = assembled(body.format(x="r"))
    # The low word of the instruction's encoding begins with the immediate.
    assert re.search(rf"\b{opcode}\S* .*/\* 0x64006400", code), code
    print(body, "constant refused; from a register", opcode, "with an immediate")
for body in OTHERS:
    assert assembled(body.format(x="0x64006400")), body
    print(body, "constant accepted")
END
"$python" "$folder/check.py" "$folder"
