"""Certificates: what they are for, and what is trusted with, without and against one."""

from pathlib import Path

import pytest
import torch

from gdpa_inductor.kernels.cute import certificates
from gdpa_inductor.kernels.cute.architectures import CONFIGS, ONE_CTA
from gdpa_inductor.kernels.cute.certificates import FAMILIES, PROVE, objection, slower
from tests.proving.certified import DEVICE, Device, a_device, certify  # noqa: F401 (a fixture)

LONG = (2048, 2048)  # queries and keys
SHAPE = certificates.shape_of(jagged=False, widest=128)


def objections() -> list[str]:
    return [objection(DEVICE, family) for family in FAMILIES]


@pytest.mark.parametrize("capability", CONFIGS, ids=str)
def test_only_what_was_measured_is_trusted_without_one(device: Device, capability: tuple[int, int]):
    device(*capability)
    if capability == (9, 0):
        assert objections() == [""] * len(FAMILIES)
    else:
        assert all("no certificate" in x and PROVE in x for x in objections())
    certify()
    assert objections() == [""] * len(FAMILIES)


@pytest.mark.parametrize("capability", CONFIGS, ids=str)
def test_a_family_that_failed_is_not_trusted(device: Device, capability: tuple[int, int]):
    """Not on Hopper either. The reason names the case, and the file to send."""
    device(*capability)
    path = certify({"backward": "no end after 30 s"})
    found = dict(zip(FAMILIES, objections(), strict=True))
    reason = found.pop("backward")
    assert "gradients of query, key and value failed here" in reason
    assert "(jagged: no end after 30 s)" in reason and str(path) in reason
    assert set(found.values()) == {""}


def test_a_family_that_was_not_proved_is_as_without_a_certificate(device: Device):
    for capability, trusted in (((9, 0), True), ((10, 0), False)):
        device(*capability)
        certify(families=("forward",))
        assert objection(DEVICE, "forward") == ""
        assert (objection(DEVICE, "backward") == "") == trusted


@pytest.mark.parametrize("capability", [(10, 0), (10, 3)], ids=str)
def test_pairs_that_failed_leave_the_other_backwards_as_they_are(
    device: Device, capability: tuple[int, int]
):
    """The kernels of one CTA take their place, not Triton. Without a certificate too."""
    device(*capability)
    kind = certificates.trusted_config_of
    pairs, one = CONFIGS[capability], ONE_CTA[CONFIGS[capability]]
    assert kind(DEVICE) is one
    certify({"pairs": "error 0.5"})
    assert kind(DEVICE) is one
    assert "by pairs of CTAs failed here (jagged: error 0.5)" in objection(DEVICE, "pairs")
    assert not objection(DEVICE, "backward")
    certify({"backward": "error 0.5"})
    assert kind(DEVICE) is pairs
    wide = {"dtype": "bfloat16", "head_dim": 128, "value_dim": 128, "program": "silu(s)"}
    kernels = [[x.ctas for x in y(**wide).backward_kernels(True, None, LONG)] for y in (pairs, one)]
    assert kernels == [[2], [1, 1]]


def test_hopper_has_no_pairs(device: Device):
    device(9, 0)
    certify({"pairs": "error 0.5"})
    assert certificates.trusted_config_of(DEVICE) is CONFIGS[9, 0]
    assert "pairs" not in certificates.families_of(DEVICE)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_process_that_proves_has_the_kernels_of_its_family(device: Device, family, monkeypatch):
    """Whatever a certificate says. Only "pairs" has pairs."""
    device(10, 0)
    certify(dict.fromkeys(FAMILIES, "wrong"))
    monkeypatch.setattr(certificates, "_proved", "")
    certificates.proving(family)
    assert certificates.trusted_config_of(DEVICE).pairs == (family == "pairs")


def test_devices_without_kernels_have_nothing_to_object_to(device: Device):
    device(12, 0)
    assert objection(DEVICE, "forward") == ""


OTHERS = {
    "source_hash": lambda: "gdpa-other",
    "_compiler": lambda: "4.8.2",
    "driver_version": lambda: 13010,
}


@pytest.mark.parametrize("part", [*OTHERS, "torch", "capability"])
def test_another_version_needs_another_certificate(device: Device, part: str, monkeypatch):
    device(10, 0)
    path = certify()
    if part == "capability":
        device(10, 3)
    elif part == "torch":
        monkeypatch.setattr(torch, "__version__", "2.99.0")
    else:
        monkeypatch.setattr(certificates, part, OTHERS[part])
    assert certificates.read(DEVICE) is None
    assert certificates.path_of(certificates.key_of(DEVICE)) != path


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": {}}'])
def test_a_damaged_certificate_is_none(device: Device, content: str):
    device(10, 0)
    certify().write_text(content)
    assert certificates.read(DEVICE) is None and "no certificate" in objection(DEVICE, "forward")


def test_a_new_certificate_is_read_at_once(device: Device):
    device(9, 0)
    certify()
    assert objection(DEVICE, "forward") == ""
    certify({"forward": "wrong"})
    assert "failed here" in objection(DEVICE, "forward")


def test_slower_is_what_clearly_takes_longer(device: Device):
    device(10, 0)
    assert slower(DEVICE, "forward", SHAPE) == ""
    for cute, triton, expected in ((1.0, 2.0, False), (1.04, 1.0, False), (1.06, 1.0, True)):
        certify(speeds={f"forward, {SHAPE}": {"cute": cute, "triton": triton}})
        assert bool(slower(DEVICE, "forward", SHAPE)) == expected
        assert slower(DEVICE, "backward", SHAPE) == ""
    certify(speeds={f"forward, {SHAPE}": {"cute": 9.0}})  # Triton's was not timed
    assert slower(DEVICE, "forward", SHAPE) == ""


def test_caches_of_what_was_chosen_see_a_certificate(device: Device, tmp_path: Path):
    device(10, 0)
    states = [certificates.state()]
    for failures in ({}, {"forward": "wrong"}):
        certify(failures)
        states.append(certificates.state())
    assert states[0] == "" and len(set(states)) == 3
