"""terminal: reports and tools on a standard output that has no character for ᵀ."""

import os
import subprocess
import sys

from gdpa_inductor.terminal import ERRORS, printable

REPORT = """
import torch
import gdpa_inductor
attention = lambda q, k, v: torch.relu(q @ k.mT) @ v
report = gdpa_inductor.explain(attention, profit=False)(*torch.randn(3, 1, 1, 64, 32))
small = gdpa_inductor.explain(attention)(*torch.randn(3, 1, 1, 16, 32))
print(report, small, repr(report), *report.matches, *small.rejections, sep="\\n")
"""


def run(encoding: str, *arguments: str) -> str:
    """What a Python process prints, whose standard output has this encoding."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-1500:]
    return done.stdout.decode(encoding)


def test_a_report_is_printed_in_ascii():
    """It raised UnicodeEncodeError."""
    printed = run("ascii", "-c", REPORT)
    assert printed.count("V, s = Q K^T") == 3
    assert "16 rows x 16 keys" in printed
    assert run("utf-8", "-c", REPORT).count("V, s = Q Kᵀ") == 3


def test_the_doctor_speaks_ascii():
    assert "Self-test on cpu: passed" in run("ascii", "-m", "gdpa_inductor", "doctor")


def test_the_curves_of_the_demo_are_drawn_in_ascii():
    plot = "from examples.movielens.report import plot; print(plot({'eager': [2.0, 1.0]}, 2, 2))"
    command = f"from gdpa_inductor.terminal import write_readably; write_readably(); {plot}"
    assert "2.000 |e" in run("ascii", "-c", command) and "+--" in run("ascii", "-c", command)


def test_what_an_encoding_lacks_is_spelled():
    """Letters of a path too, which have no words of their own."""
    assert "a·Qᵀ é".encode("latin-1", ERRORS).decode("latin-1") == "a·Q^T é"
    assert "é … 1–3".encode("ascii", ERRORS) == b"\\xe9 ... 1-3"
    assert printable("Q Kᵀ").encode(sys.stdout.encoding or "utf-8")
