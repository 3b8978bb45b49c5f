"""`gdpa prove`: whether the CuTe kernels are right and fast on the GPU that is here.

Nothing but the hardware can say so. Each family of kernels runs in a process of its own, which a
watchdog ends if it hangs: `prove` costs this process nothing. The result is a certificate
(`kernels/cute/certificates.py`), which `auto` follows.

- `cases` is the matrix of problems, and the shapes that are timed.
- `checks` says what is right; `speed` times.
- `child` runs both, in processes that `watchdog` watches.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..kernels.cute import certificates
from ..kernels.cute.architectures import config_of
from ..kernels.cute.certificates import FAMILIES, RIVALS, Record
from ..lowerings.cute.rules import unusable
from ..rejection import GDPAError
from .cases import predicted
from .watchdog import SPEED, STARVES, Ended, environment, python, watched

TIMED = ("forward", "backward")  # families that have a rival
PATIENCE = 3600.0  # seconds until the mark of a proof under way counts for nothing
MPS = ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # variable and default: where its pipes lie

Say = Callable[[str], None]


def prove(
    device: torch.device, families: Sequence[str] = (), say: Say = lambda text: None
) -> Record:
    """Prove families of kernels on a device, time those that are right, and write a certificate.

    families: All of the device, if none is named. Others keep what an earlier certificate says of
    them. say: Takes a line for each result.

    Raises:
        GDPAError: nothing (more) can be proved here. The message says why.
    """
    if reason := cannot(device, families):
        raise GDPAError(reason)
    families = families or certificates.families_of(device)
    before = certificates.read(device) or {"families": {}, "speeds": {}}
    record: Record = {
        "key": certificates.key_of(device),
        "gpu": torch.cuda.get_device_name(device),
        "families": dict(before["families"]),
        "speeds": dict(before["speeds"]),
    }
    start = time.monotonic()
    for family in families:
        record["families"][family] = cases = _proved(family, device)
        certificates.write(record)
        say(f"{family:9} {certificates.failure_of(record, family) or f'{len(cases)} cases right'}")
    timed = [x for x in families if x in TIMED and not certificates.failure_of(record, x)]
    if timed:
        _time(timed, device, record, say)
    record["seconds"] = round(time.monotonic() - start, 1)
    certificates.write(record)
    return record


def cannot(device: torch.device, families: Sequence[str] = ()) -> str:
    """Why nothing can be proved on a device, or one of these families cannot, or ""."""
    if config_of(device) is None:
        major, minor = torch.cuda.get_device_capability(device)
        return f"there are no CuTe kernels for compute capability {major}.{minor}"
    for family in {*families} - {*certificates.families_of(device)}:
        return f"this GPU has no CuTe kernels of {FAMILIES[family]}"
    return unusable()


def _child(work: str, device: torch.device) -> Ended:
    module = f"{__package__}.child"
    ended = watched(python(module, work, str(device.index or 0)))
    if not ended.lines:
        raise GDPAError(f"the process that proves kernels did not start: {ended.how}")
    if ended.at.get("doing") == STARVES:  # no fault of the kernels
        raise GDPAError(f"the GPU has too little free memory for {work}, {ended.at['case']}")
    return ended


def _proved(family: str, device: torch.device) -> dict[str, str]:
    """By case: what was wrong, or ""."""
    ended = _child(family, device)
    cases = {line["case"]: line["verdict"] for line in ended.lines if "verdict" in line}
    if ended.how and not any(cases.values()):  # it named no reason itself
        cases[ended.at["case"]] = ended.how
    return cases


def _time(families: list[str], device: torch.device, record: Record, say: Say) -> None:
    """Add the times of both kernels, and what CuTe's did wrong meanwhile."""
    ended = _child("+".join(families) + SPEED, device)
    for line in ended.lines:
        if "milliseconds" in line:
            record["speeds"].setdefault(line["case"], {})[line["kernel"]] = line["milliseconds"]
    last = ended.at
    if last["kernel"] == RIVALS[0] and (ended.how or last.get("verdict")):
        family = last["case"].partition(",")[0]
        record["families"][family][last["case"]] = last.get("verdict") or ended.how
        say(f"{family:9} {certificates.failure_of(record, family)}")
    for shape, times in record["speeds"].items():
        said = [f"{x} {times[x]:.3f} ms" for x in RIVALS if x in times]
        expected = predicted(shape, record["key"]["capability"])
        say(
            f"{shape}: "
            + ", ".join(said + [f"cute by the timing model {expected}"] * bool(expected))
        )


def described(device: torch.device) -> str:
    """What the doctor says of the kernels for a device: one line, or "" if there are none."""
    kind = config_of(device)
    if kind is None or unusable():
        return ""
    reasons = (
        certificates.objection(device, family) for family in certificates.families_of(device)
    )
    reason = next(filter(None, reasons), "")
    record = certificates.read(device)
    if reason or record is None:
        return reason or "measured by the project, no certificate needed"
    lost = [
        shape
        for shape, times in record["speeds"].items()
        if certificates.slower(device, *shape.split(", ", 1))
    ]
    slow = f"; Triton was faster on: {'; '.join(lost)}" if lost else ""
    return f"proved here, {certificates.path_of(record['key'])}{slow}"


def begin(devices: Iterable[torch.device]) -> None:
    """Start `gdpa prove` in the background, on each device whose kernels need a certificate.

    It has low priority, and outlives this process. Only the first process of several starts it.
    """
    for device in dict.fromkeys(devices):
        kind = config_of(device) if device.type == "cuda" else None
        if kind is None or kind.measured or unusable() or certificates.is_complete(device):
            continue
        if _shares_faults() or not _is_first(device):
            continue
        number = torch.cuda.current_device() if device.index is None else device.index
        subprocess.Popen(
            python("gdpa_inductor", "prove", "--device", str(number), "--background"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
        )


def _shares_faults() -> bool:
    """Whether processes share a context, as under MPS: the fault of one ends all of them."""
    variable, folder = MPS
    return os.path.exists(os.environ.get(variable, folder))


def _mark(device: torch.device) -> Path:
    return certificates.path_of(certificates.key_of(device)).with_suffix(".lock")


def _is_first(device: torch.device) -> bool:
    """Whether no other process proves this. It leaves a mark, which `finished` takes away."""
    mark = _mark(device)
    with contextlib.suppress(OSError):
        if time.time() - mark.stat().st_mtime > PATIENCE:
            mark.unlink()
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch(exist_ok=False)
    except OSError:
        return False
    return True


def finished(device: torch.device) -> None:
    _mark(device).unlink(missing_ok=True)


def main(number: int, families: Sequence[str], background: bool) -> int:
    """The command. Its status: 0 if all is right, 1 if a family failed, 2 if nothing was proved."""
    if background:
        os.nice(19)
    if not torch.cuda.is_available():
        print("gdpa prove: torch finds no NVIDIA GPU")
        return 2
    device = torch.device("cuda", number)
    try:
        record: dict[str, Any] = prove(device, families, say=print)
    except GDPAError as error:
        print(f"gdpa prove: {error}")
        return 2
    finally:
        finished(device)
    failed = [x for x in record["families"] if certificates.failure_of(record, x)]
    print(f"certificate: {certificates.path_of(record['key'])}")
    if failed:
        print(f"`auto` takes others for: {', '.join(failed)}. Please report it, with this file")
    return 1 if failed else 0
