"""terminal: reports and tools on a standard output that has no character for ᵀ."""

import contextlib
import io
import sys
from collections.abc import Callable

import torch

import gdpa_inductor
from examples.movielens.report import plot
from gdpa_inductor import __main__
from gdpa_inductor.terminal import ERRORS, printable, write_readably


def said(encoding: str, run: Callable[[], object]) -> str:
    """What a function prints on a standard output of this encoding, as Python opens it."""
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with contextlib.redirect_stdout(output):
        run()
    output.flush()
    return output.buffer.getvalue().decode(encoding)


def test_a_report_is_printed_in_ascii():
    """It raised UnicodeEncodeError."""
    attention = lambda q, k, v: torch.relu(q @ k.mT) @ v
    report = gdpa_inductor.explain(attention, profit=False)(*torch.randn(3, 1, 1, 64, 32))
    small = gdpa_inductor.explain(attention)(*torch.randn(3, 1, 1, 16, 32))
    show = lambda: print(report, small, repr(report), *report.matches, *small.rejections, sep="\n")
    printed = said("ascii", show)
    assert printed.count("V, s = Q K^T") == 3
    assert "16 rows x 16 keys" in printed
    assert said("utf-8", show).count("V, s = Q Kᵀ") == 3


def test_the_doctor_speaks_ascii():
    assert "Self-test on cpu: passed" in said("ascii", lambda: __main__.main(["doctor"]))


def test_the_curves_of_the_demo_are_drawn_in_ascii():
    def draw() -> None:
        write_readably()
        print(plot({"eager": [2.0, 1.0]}, 2, 2))

    printed = said("ascii", draw)
    assert "2.000 |e" in printed and "+--" in printed


def test_what_an_encoding_lacks_is_spelled():
    """Letters of a path too, which have no words of their own."""
    assert "a·Qᵀ é".encode("latin-1", ERRORS).decode("latin-1") == "a·Q^T é"
    assert "é … 1–3".encode("ascii", ERRORS) == b"\\xe9 ... 1-3"
    assert printable("Q Kᵀ").encode(sys.stdout.encoding or "utf-8")
