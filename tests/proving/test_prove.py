"""`gdpa prove` with processes that stand in for those that run kernels: what each comes to."""

import json
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from gdpa_inductor import GDPAError, __main__, doctor, gdpa_backend, proving
from gdpa_inductor.kernels.cute import certificates
from gdpa_inductor.kernels.cute.certificates import objection, shape_of, slower
from gdpa_inductor.proving import watchdog
from tests.proving.certified import DEVICE, Device, a_device, certify  # noqa: F401 (a fixture)

SHAPES = [shape_of(jagged, dim) for jagged in (False, True) for dim in (64, 128)]
# Takes the place of `proving.child`. `behave` is code for some of (work, case).
CHILD = """
import json, os, sys, time
module, work, device, path = sys.argv[1:]
assert module == "gdpa_inductor.proving.child" and device == "0"
def note(**line): print(json.dumps(line), file=open(path, "a"), flush=True)
behave = json.loads({behave!r})
if work.endswith(":speed"):
    for family in work.removesuffix(":speed").split("+"):
        for shape in {shapes!r}:
            for kernel, took in (("cute", 1.0), ("triton", 2.0)):
                case = f"{{family}}, {{shape}}"
                note(case=case, kernel=kernel, doing="compiles")
                note(case=case, kernel=kernel, doing="runs")
                exec(behave.get(f"{{kernel}} {{case}}", ""))
                note(case=case, kernel=kernel, milliseconds=took)
else:
    for case in ("dense", "jagged"):
        verdict = ""
        exec(behave.get(f"{{work}} before", ""))
        note(case=case, doing="compiles")
        note(case=case, doing="runs")
        exec(behave.get(f"{{work}} {{case}}", ""))
        note(case=case, verdict=verdict)
"""


@pytest.fixture
def behave(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`behave(work="code")`: what a child does at some of its steps. There is a Blackwell GPU."""
    device(10, 0)
    monkeypatch.setattr(proving, "unusable", lambda: "")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
    monkeypatch.setattr(watchdog, "RUNNING", 0.5)

    def of(**steps: str) -> None:
        script = tmp_path / "child.py"
        text = CHILD.format(behave=json.dumps(steps), shapes=SHAPES)
        script.write_text(textwrap.dedent(text))
        monkeypatch.setattr(proving, "python", lambda *x: [sys.executable, str(script), *x])

    of()
    return of


def test_what_is_right_gets_a_certificate(behave):
    said: list[str] = []
    assert "no certificate" in proving.described(DEVICE)
    record = proving.prove(DEVICE, say=said.append)
    assert certificates.read(DEVICE) == record and record["key"] == certificates.key_of(DEVICE)
    families = certificates.families_of(DEVICE)
    assert record["families"] == {x: {"dense": "", "jagged": ""} for x in families}
    assert len(record["speeds"]) == 8
    assert [objection(DEVICE, x) for x in certificates.families_of(DEVICE)] == [""] * 5
    assert proving.described(DEVICE).startswith("proved here, ")
    assert said[0] == "forward   2 cases right"
    assert said[-1] == f"backward, {SHAPES[-1]}: cute 1.000 ms, triton 2.000 ms"


FAULTS = {
    "a hang": ("time.sleep(600)", "dense: no end after 0.5 s"),
    "a crash": ("os.abort()", "dense: ended by SIGABRT"),
    "a wrong result": ("verdict = 'result 0: off'", "dense: result 0: off"),
    "an illegal address": (
        "note(case=case, verdict='Error: illegal'); os._exit(1)", "dense: Error: illegal"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_one_family_and_nothing_else(behave, name: str):
    """It is found in a process of its own, so the next family has a GPU that works."""
    code, failure = FAULTS[name]
    behave(**{"backward dense": code})
    record = proving.prove(DEVICE)
    assert certificates.failure_of(record, "backward") == failure
    assert failure in proving.described(DEVICE) and failure in objection(DEVICE, "backward")
    assert [objection(DEVICE, x) for x in ("forward", "biases", "tables")] == [""] * 3
    assert len(record["speeds"]) == 4  # of the forward; what is wrong is not timed


@pytest.mark.parametrize("name", [x for x in FAULTS if x != "a wrong result"])
def test_a_fault_on_a_shape_that_is_timed_counts(behave, name: str):
    """These are larger than the cases."""
    code, failure = FAULTS[name]
    shape = f"forward, {SHAPES[2]}"
    behave(**{f"cute {shape}": code.replace("case=case", "case=case, kernel=kernel")})
    record = proving.prove(DEVICE)
    expected = failure.replace("dense", shape, 1)
    assert certificates.failure_of(record, "forward") == expected
    assert objection(DEVICE, "backward") == ""


def test_a_fault_of_tritons_is_not_ours(behave):
    shape = f"forward, {SHAPES[2]}"
    behave(**{f"triton {shape}": "os.abort()"})
    record = proving.prove(DEVICE)
    assert {certificates.failure_of(record, x) for x in record["families"]} == {""}
    assert record["speeds"][shape] == {"cute": 1.0}


def test_what_is_slower_than_triton_is_told(behave):
    behave(**{f"cute forward, {SHAPES[0]}": "took = 3.0"})
    proving.prove(DEVICE)
    assert slower(DEVICE, "forward", SHAPES[0]) and not slower(DEVICE, "forward", SHAPES[1])
    assert f"Triton was faster on: forward, {SHAPES[0]}" in proving.described(DEVICE)


def test_families_that_are_not_named_keep_their_verdicts(behave):
    certify({"biases": "wrong"})
    behave(**{"forward jagged": "verdict = 'off'"})
    record = proving.prove(DEVICE, ["forward"])
    failures = {x: certificates.failure_of(record, x) for x in record["families"]}
    assert failures == {"forward": "jagged: off", "backward": "", "biases": "jagged: wrong",
                        "tables": "", "weights": "", "pairs": ""}  # fmt: skip


def test_a_process_that_does_not_start_says_nothing_about_kernels(behave):
    """No context, such as on a GPU that another process has for itself."""
    behave(**{"forward before": "raise RuntimeError('CUDA-capable device(s) is/are busy')"})
    with pytest.raises(GDPAError, match="did not start: ended with status 1: RuntimeError: CUDA"):
        proving.prove(DEVICE)
    assert certificates.read(DEVICE) is None


def test_times_that_cannot_be_had_do_not_lose_what_was_proved(behave, monkeypatch):
    begin = proving._child

    def child(work: str, device: torch.device):
        if work.endswith(watchdog.SPEED):
            raise GDPAError("no memory left")
        return begin(work, device)

    monkeypatch.setattr(proving, "_child", child)
    with pytest.raises(GDPAError, match="no memory left"):
        proving.prove(DEVICE)
    assert [objection(DEVICE, x) for x in certificates.families_of(DEVICE)] == [""] * 5


def test_a_gpu_without_free_memory_is_no_fault_of_the_kernels(behave):
    """As beside a training that has all of it. What was proved before stays."""
    behave(**{"backward jagged": "note(case=case, doing='lacks memory'); os._exit(1)"})
    with pytest.raises(GDPAError, match="too little free memory for backward, jagged"):
        proving.prove(DEVICE)
    assert objection(DEVICE, "forward") == "" and "no certificate" in objection(DEVICE, "backward")


def test_gpus_without_kernels_prove_nothing(device: Device):
    device(12, 0)
    with pytest.raises(GDPAError, match="no CuTe kernels for compute capability 12"):
        proving.prove(DEVICE)
    assert proving.described(DEVICE) == ""


@pytest.mark.parametrize(
    ("steps", "status", "says"),
    [
        ({}, 0, "certificate: "),
        ({"tables dense": "os.abort()"}, 1, "takes others for: tables. Please report it"),
        ({"forward before": "os.abort()"}, 2, "gdpa prove: the process"),
    ],
)
def test_the_command(behave, capsys, monkeypatch, steps: dict, status: int, says: str):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    behave(**steps)
    assert __main__.main(["prove"]) == status
    assert says in capsys.readouterr().out
    assert (certificates.read(DEVICE) is None) == (status == 2)


def test_the_command_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert __main__.main(["prove"]) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().out


def test_a_family_that_is_unknown_is_told(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["prove", "forwards"])
    told = "no family 'forwards' (there are: forward, backward, biases, tables, weights, pairs)"
    assert told in capsys.readouterr().err


@pytest.fixture
def begun(behave, monkeypatch) -> list[list[str]]:
    """The commands that `begin` has started."""
    commands: list[list[str]] = []
    monkeypatch.setattr(proving.subprocess, "Popen", lambda x, **how: commands.append(x))
    monkeypatch.setattr(proving, "MPS", ("NO_SUCH_VARIABLE", "/no/such/folder"))
    return commands


def test_only_the_first_compile_begins_a_proof(begun, tmp_path):
    for _ in range(3):
        proving.begin([DEVICE, DEVICE])
    assert [x[2:] for x in begun] == [["gdpa_inductor", "prove", "--device", "0", "--background"]]
    proving.finished(DEVICE)
    proving.begin([DEVICE])
    assert len(begun) == 2


def test_a_proof_that_never_ended_is_begun_again(begun, monkeypatch):
    proving.begin([DEVICE])
    monkeypatch.setattr(proving, "PATIENCE", -1.0)
    proving.begin([DEVICE])
    assert len(begun) == 2


def test_no_proof_is_begun_where_none_is_needed(begun, device: Device, monkeypatch):
    for capability in ((9, 0), (12, 0), (8, 0)):
        device(*capability)
        proving.begin([DEVICE])
    device(10, 0)
    proving.begin([torch.device("cpu")])
    monkeypatch.setattr(proving, "unusable", lambda: "not installed")
    proving.begin([DEVICE])
    monkeypatch.setattr(proving, "unusable", lambda: "")
    certify()
    proving.begin([DEVICE])
    assert begun == []
    certify(families=("forward",))
    proving.begin([DEVICE])
    assert len(begun) == 1


def test_no_proof_is_begun_under_mps(begun, monkeypatch, tmp_path):
    """There the fault of one process ends all of them."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(proving, "MPS", ("CUDA_MPS_PIPE_DIRECTORY", "/no/such/folder"))
    proving.begin([DEVICE])
    assert begun == []


@pytest.mark.parametrize("prove", [False, True])
def test_a_compile_begins_one_where_the_option_allows_it(monkeypatch, prove: bool):
    devices: list[torch.device] = []
    monkeypatch.setattr(proving, "begin", devices.extend)
    options = {"gdpa.profit": False, "gdpa.prove": prove}
    model = torch.compile(
        lambda q, k, v: torch.relu(q @ k.mT) @ v, backend=gdpa_backend, options=options
    )
    model(*torch.randn(3, 1, 2, 32, 16))
    assert devices == [torch.device("cpu")] * prove


def test_a_proof_that_cannot_begin_costs_the_compile_nothing(monkeypatch, caplog):
    def broken(devices):
        raise OSError("no space left on device")

    monkeypatch.setattr(proving, "begin", broken)
    options = {"gdpa.profit": False, "gdpa.prove": True, "gdpa.expect": 1}
    model = torch.compile(
        lambda q, k, v: torch.relu(q @ k.mT) @ v, backend=gdpa_backend, options=options
    )
    model(*torch.randn(3, 1, 2, 32, 16))
    assert "not proved in the background: OSError: no space left" in caplog.text


def test_the_doctor_says_what_is_known_of_a_gpu(behave, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    properties = type("", (), {"name": "a GPU", "major": 10, "minor": 0})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    (gpu,) = doctor.devices()["gpus"]
    assert gpu["arch"] == "sm_100" and certificates.PROVE in gpu["cute"]
    finding = {"versions": {}, "kernels": [], "self_test": [], "warnings": [], "healthy": True}
    text = doctor.as_text({**finding, "devices": doctor.devices()})
    assert f"    CuTe kernels: {gpu['cute']}" in text
