"""Instructions of the Triton kernels with and without fused products and sums; needs no GPU."""

import collections
import re
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.kernels.cases import Case
from tests.kernels.fake_cuda import tool
from tests.kernels.test_cubins import compiled

COUNTED = ("FFMA", "FMUL", "FADD", "MUFU")


def instructions(cubin: bytes, folder: Path) -> collections.Counter:
    """How often each instruction is in the machine code."""
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    text = tool("cuobjdump", "-sass", str(path))
    line = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?([A-Z0-9_]+)")
    return collections.Counter(line.findall(text))


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    print("| program | kernel | fused | instructions |", " | ".join(COUNTED), "|")
    for program in ("silu", "gelu_tanh", "gelu"):
        case = Case(program, f"{program}(mul(s,0.088))", m=1024, n=1024, d=64, dv=64, h=4)
        for name, text in case.templates(torch.bfloat16, choice=0).items():
            kernel = "forward" if "arg_DO" not in text else "keys" if "arg_OUT1" in text else "rows"
            for fused in (True, False):
                asked = text.replace("'enable_fp_fusion': True", f"'enable_fp_fusion': {fused}")
                made = compiled(name, asked, 90, folder)
                found = instructions(made.asm["cubin"], folder)
                counts = " | ".join(str(found[name]) for name in COUNTED)
                print(f"| {program} | {kernel} | {fused} | {found.total()} | {counts} |")


if __name__ == "__main__":
    main()
