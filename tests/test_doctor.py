"""The doctor finds a healthy package healthy, and each kind of fault as a fault."""

import importlib
import json
from pathlib import Path

import pytest
import tomllib
import torch
from expecttest import assert_expected_inline

import gdpa_inductor
from gdpa_inductor import __main__, backend, doctor


def test_healthy_here(capsys):
    assert __main__.main(["doctor", "--json"]) == 0
    finding = json.loads(capsys.readouterr().out)
    assert finding["healthy"]
    assert finding["versions"]["torch"] == torch.__version__
    assert finding["warnings"] == []
    tested = finding["self_test"][0]
    assert tested["device"] == "cpu"
    assert tested["counters"]["matched"] >= 1
    assert set(tested["errors"]) == {"output", "d query", "d key", "d value", "d bias"}
    answers = {row["kernel"]: row for row in finding["kernels"] if row["device"] == "cpu"}
    assert answers["auto"]["runs"]
    assert not answers["triton"]["runs"] and "DEVICE" in answers["triton"]["answer"]


def test_text_has_a_line_for_each_finding(capsys):
    finding = {
        "versions": {"torch": "2.13.0", "triton": None},
        "devices": {"cpu_threads": 2, "cxx": None, "cuda": "13.0", "gpus": []},
        "warnings": ["no C++ compiler on PATH"],
        "kernels": [
            {
                "device": "cpu",
                "dtype": "float32",
                "kernel": "cpu",
                "runs": True,
                "answer": "cpu (ok)",
            }
        ],
        "self_test": [{"device": "cpu", "passed": False, "why": "wrong: output", "counters": {}}],
        "healthy": False,
    }
    text = doctor.as_text(finding)
    for part in (
        "not installed",
        "no NVIDIA GPU",
        "cpu (ok)",
        "FAILED",
        "wrong: output",
        "Warning",
    ):
        assert part in text


def test_wrong_results_fail_the_self_test(monkeypatch):
    def off_by_a_thousandth(gm, example_inputs, *, mode=None, options=None):
        def run(*inputs):
            (out,) = gm(*inputs)
            return (out * 1.001,)

        return run

    monkeypatch.setattr(backend, "gdpa_backend", off_by_a_thousandth)
    finding = doctor.self_test("cpu")
    assert not finding["passed"]
    assert "output" in finding["why"] and "d bias" in finding["why"]


def test_a_backend_that_does_nothing_fails_the_self_test(monkeypatch):
    monkeypatch.setattr(backend, "gdpa_backend", lambda gm, inputs, **kwargs: gm.forward)
    finding = doctor.self_test("cpu")
    assert finding["why"] == "nothing was rewritten"
    assert not finding["passed"]


def test_a_backend_that_raises_is_a_finding(monkeypatch):
    def broken(gm, example_inputs, **kwargs):
        raise RuntimeError("out of order")

    monkeypatch.setattr(backend, "gdpa_backend", broken)
    finding = doctor.self_test("cpu")
    assert not finding["passed"]
    assert "out of order" in finding["why"]


def test_a_judge_that_raises_is_a_finding(monkeypatch):
    def judge(problem, kernel):
        raise RuntimeError("no driver")

    monkeypatch.setattr(doctor, "judge", judge)
    rows = doctor.kernels()
    assert rows
    assert not any(row["runs"] for row in rows)
    assert all("no driver" in row["answer"] for row in rows if row["device"] == "cpu")


def test_kernels_of_a_missing_gpu_say_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "judge", lambda problem, kernel: kernel)
    (row,) = (row for row in doctor.kernels() if row["device"] == "cuda")
    assert not row["runs"]
    assert "no NVIDIA GPU" in row["answer"]


@pytest.mark.parametrize(("argv", "status"), [([], 2), (["--help"], 0)])
def test_command_line_lists_its_tools(argv: list[str], status: int, capsys):
    assert __main__.main(argv) == status
    printed = capsys.readouterr().out
    assert all(tool in printed for tool in ("doctor", "demo", "bench"))


def test_a_misspelt_tool_is_told_with_the_nearest(capsys):
    assert __main__.main(["docter"]) == __main__.main(["xyzzy"]) == 2
    assert_expected_inline(
        capsys.readouterr().err,
        """\
gdpa_inductor: there is no tool 'docter'; did you mean 'doctor'?
gdpa_inductor: there is no tool 'xyzzy' (there are: doctor, demo, bench)
""",
    )


def test_the_console_script_is_the_module(monkeypatch, capsys):
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    module, _, function = project["project"]["scripts"]["gdpa"].partition(":")
    monkeypatch.setattr("sys.argv", ["gdpa", "--version"])
    assert getattr(importlib.import_module(module), function)() == 0
    assert capsys.readouterr().out == f"gdpa_inductor {gdpa_inductor.__version__}\n"


def test_the_version_is_that_of_the_package(capsys):
    assert __main__.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gdpa_inductor {gdpa_inductor.__version__}\n"
