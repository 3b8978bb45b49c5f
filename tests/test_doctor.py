"""The doctor finds a healthy package healthy, and each kind of fault as a fault."""

import importlib
import json
import re
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
    kernel = {"device": "cpu", "dtype": "float32", "kernel": "cpu", "runs": True}
    finding = {
        "versions": {"torch": "2.13.0", "triton": None},
        "devices": {"cpu_threads": 2, "cxx": None, "cuda": "13.0", "gpus": []},
        "warnings": ["no C++ compiler on PATH"],
        "kernels": [{**kernel, "answer": "cpu (ok)"}],
        "self_test": [{"device": "cpu", "passed": False, "why": "wrong: output", "counters": {}}],
        "healthy": False,
    }
    text = doctor.as_text(finding)
    parts = ["not installed", "no NVIDIA GPU", "cpu (ok)", "FAILED", "wrong: output", "Warning"]
    assert [part for part in parts if part not in text] == []


def off_by_a_thousandth(gm, inputs, **options):
    return lambda *inputs: tuple(out * 1.001 for out in gm(*inputs))


def broken(gm, inputs, **options):
    raise RuntimeError("out of order")


BACKENDS = {
    off_by_a_thousandth: r"output.*d bias",
    (lambda gm, inputs, **options: gm.forward): "^nothing was rewritten$",
    broken: "out of order",
}


@pytest.mark.parametrize("faulty", BACKENDS)
def test_a_faulty_backend_fails_the_self_test(faulty, monkeypatch):
    monkeypatch.setattr(backend, "gdpa_backend", faulty)
    finding = doctor.self_test("cpu")
    assert not finding["passed"] and re.search(BACKENDS[faulty], finding["why"], re.S)


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
    assert all(tool in printed for tool in ("doctor", "prove", "demo", "bench"))


def test_a_misspelt_tool_is_told_with_the_nearest(capsys):
    assert __main__.main(["docter"]) == __main__.main(["xyzzy"]) == 2
    assert_expected_inline(
        capsys.readouterr().err,
        """\
gdpa_inductor: there is no tool 'docter'; did you mean 'doctor'?
gdpa_inductor: there is no tool 'xyzzy' (there are: doctor, prove, demo, bench)
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
