"""Instructions of the Triton kernels with and without fused products and sums; needs no GPU."""

import collections
import glob
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.kernels.cases import Case
from tests.kernels.test_cubins import compiled, sources

COUNTED = ("FFMA", "FMUL", "FADD", "MUFU")


def instructions(cubin: bytes, folder: Path) -> collections.Counter:
    """How often each instruction is in the machine code."""
    binaries = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin")
    (tool,) = glob.glob(os.path.join(binaries, "cuobjdump"))
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    text = subprocess.run([tool, "-sass", str(path)], capture_output=True, text=True).stdout
    line = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?([A-Z0-9_]+)")
    return collections.Counter(line.findall(text))


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    print("| program | kernel | fused | instructions |", " | ".join(COUNTED), "|")
    for program in ("silu", "gelu_tanh", "gelu"):
        case = Case(program, f"{program}(mul(s,0.088))", m=1024, n=1024, d=64, dv=64, h=4)
        for name, text in sources(case, torch.bfloat16, 90).items():
            if "triton_heuristics.template" not in text:
                continue
            kernel = "forward" if "arg_DO" not in text else "keys" if "arg_OUT1" in text else "rows"
            for fused in (True, False):
                asked = text.replace("'enable_fp_fusion': True", f"'enable_fp_fusion': {fused}")
                made = compiled(name, asked, 90, folder)
                found = instructions(made.asm["cubin"], folder)
                counts = " | ".join(str(found[name]) for name in COUNTED)
                print(f"| {program} | {kernel} | {fused} | {found.total()} | {counts} |")


if __name__ == "__main__":
    main()
