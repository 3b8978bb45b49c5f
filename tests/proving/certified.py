"""Devices that are not there, and certificates for them in a folder of the test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gdpa_inductor.kernels.cute import certificates

DEVICE = torch.device("cuda", 0)
Device = Callable[[int, int], None]


@pytest.fixture(name="device")
def a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    """`device(10, 3)`: `DEVICE` has this compute capability, and no certificate yet."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(certificates, "driver_version", lambda: 13000)
    monkeypatch.setattr(certificates, "_compiler", lambda: "4.8.1")

    def of(*capability: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)

    return of


def certify(
    failures: dict[str, str] | None = None,
    speeds: dict[str, dict[str, float]] | None = None,
    families: tuple[str, ...] = tuple(certificates.FAMILIES),
) -> Path:
    """Write a certificate for `DEVICE`. failures: by family, of a case that is called "jagged"."""
    record: dict[str, Any] = {"key": certificates.key_of(DEVICE), "speeds": speeds or {}}
    record["families"] = {
        family: {"dense": "", "jagged": (failures or {}).get(family, "")} for family in families
    }
    return certificates.write(record)
