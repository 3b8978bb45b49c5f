"""Certificates: what `gdpa prove` has found out about the kernels on a device.

A certificate is a JSON file in Inductor's cache folder. Its name is a hash of its key: all on which
right and fast kernels depend. So a new driver, torch or release of this package needs a new one.

    key        capability and architecture of the code; versions
    families   by family: its cases, each with what was wrong, or ""
    speeds     by family and shape: milliseconds of "cute" and "triton"

A family is what can fail by itself. One wrong case is enough to leave a whole family to Triton, or
pairs of CTAs to kernels of one.
Architectures that the project has measured on hardware (`KernelConfig.measured`) need no
certificate, but one that is there is followed. cutlass is not imported here.
"""

import functools
import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..._compat import inductor
from ..._compat.versions import version_of
from ...sources import source_hash
from .architectures import ONE_CTA, config_of
from .config import PACKAGE, KernelConfig
from .runtime import driver_version

FAMILIES = {
    "forward": "outputs",
    "backward": "gradients of query, key and value",
    "biases": "gradients of operands between the products",
    "tables": "gradients of look-ups in tables",
    "weights": "P and dS",
    "pairs": "gradients by pairs of CTAs",
}
SPECIAL = {"weights": "stores_weights", "pairs": "pairs"}  # families of which not all have kernels
RIVALS = ("cute", "triton")
FOLDER = "gdpa_certificates"
PROVE = "python -m gdpa_inductor prove"
SLOWER = 1.05  # times Triton's time, from which on a kernel counts as slower
WIDTHS = (64, 128, 256)  # head dims of shapes that are timed

Record = dict[str, Any]


def key_of(device: torch.device) -> dict[str, str]:
    """What a certificate is for: the architecture, and the versions of all that runs there."""
    kind = config_of(device)
    major, minor = torch.cuda.get_device_capability(device)
    return {
        "capability": f"{major}.{minor}",
        "architecture": kind.arch if kind else "",
        "gdpa_inductor": source_hash(),
        PACKAGE: _compiler(),
        "torch": torch.__version__,
        "driver": str(driver_version()),
    }


@functools.cache
def _compiler() -> str:
    return str(version_of(PACKAGE))


def path_of(key: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return _folder() / f"{digest[:16]}.json"


def write(record: Record) -> Path:
    """Store a certificate in one step, so that no reader sees a part of it."""
    path = path_of(record["key"])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.{uuid.uuid4().hex}")
    partial.write_text(json.dumps(record, indent=2))
    partial.replace(path)
    return path


def read(device: torch.device) -> Record | None:
    """The certificate of a device, or None. One that cannot be read is none."""
    key = key_of(device)
    path = path_of(key)
    try:
        record = _parsed(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("key") == key else None


@functools.lru_cache(64)
def _parsed(path: Path, written: int) -> Any:
    return json.loads(path.read_text())


def state() -> str:
    """A text that changes with any certificate, for keys of caches of what `auto` has chosen."""
    files = sorted(_folder().glob("*.json"))
    if not files:
        return ""
    content = b"".join(path.name.encode() + path.read_bytes() for path in files)
    return f"-{hashlib.sha256(content).hexdigest()[:16]}"


def families_of(device: torch.device) -> tuple[str, ...]:
    """The families of which a device has kernels."""
    kind = config_of(device)
    return tuple(x for x in FAMILIES if x not in SPECIAL or getattr(kind, SPECIAL[x], False))


def is_complete(device: torch.device) -> bool:
    """Whether a device has a certificate that knows all of its families."""
    record = read(device)
    return record is not None and record["families"].keys() >= {*families_of(device)}


def failure_of(record: Record, family: str) -> str:
    """What was wrong with a family: the first case that failed, and how. "" if nothing was."""
    cases = record["families"][family].items()
    return next((f"{case}: {verdict}" for case, verdict in cases if verdict), "")


def objection(device: torch.device, family: str) -> str:
    """Why a family of kernels is not trusted on a device, or ""."""
    kind = config_of(device)
    if kind is None:
        return ""  # there is no kernel to object to
    record = read(device)
    if record is None or family not in record["families"]:
        if kind.measured:
            return ""
        return f"the kernels for {kind.gpu} have no certificate on this machine yet ({PROVE})"
    if failure := failure_of(record, family):
        path = path_of(record["key"])
        return f"the CuTe kernels of {FAMILIES[family]} failed here ({failure}); to report: {path}"
    return ""


_proved = ""  # the family that this process proves, if it does


def proving(family: str) -> None:
    """This process proves a family: whatever a certificate says, pairs run for "pairs" alone."""
    global _proved
    _proved = family


def trusted_config_of(device: torch.device) -> type[KernelConfig] | None:
    """The configuration class of a device, without pairs of CTAs if they are not trusted there."""
    kind = config_of(device)
    if kind not in ONE_CTA or device.type != "cuda":
        return kind
    trusted = _proved == "pairs" if _proved else not objection(device, "pairs")
    return kind if trusted else ONE_CTA[kind]


def slower(device: torch.device, family: str, shape: str) -> str:
    """Why Triton is faster on a device, or "". shape: By the name of `shape_of`."""
    record = read(device) or {"speeds": {}}
    cute, triton = (record["speeds"].get(f"{family}, {shape}", {}).get(x) for x in RIVALS)
    if not (cute and triton) or cute <= SLOWER * triton:
        return ""
    return f"Triton was faster here, {triton:.3f} ms against {cute:.3f} ms ({family}, {shape})"


def shape_of(jagged: bool, widest: int) -> str:
    """The name of the shapes that are timed together."""
    dim = next((x for x in WIDTHS if widest <= x), WIDTHS[-1])
    return f"{'jagged' if jagged else 'dense'}, head dim {dim}"


def _folder() -> Path:
    return Path(inductor.cache_root()) / FOLDER
