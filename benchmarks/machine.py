"""The first line of every run: the command, the machine, the versions and the date.

docs/tools/benchmarks.py reads it and prints it below each table.
"""

import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
KERNELS = {"triton": "triton", "cutlass_dsl": "nvidia-cutlass-dsl"}


def header(device: str, argv: Sequence[str]) -> Row:
    """The first row of a run: the machine and the command. argv: The arguments after `bench`."""
    command = shlex.join(["python", "-m", "gdpa_inductor", "bench", *argv])
    return {"machine": machine(device), "command": command}


def machine(device: str) -> Row:
    """The date, the versions, and the GPU or CPU with its driver or compiler."""
    facts: Row = {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version()}
    facts["torch"] = torch.__version__
    if device == "cuda":
        facts |= {
            "gpu": torch.cuda.get_device_name(),
            "driver": driver(),
            "cuda": torch.version.cuda,
        }
        return facts | {name: version(package) for name, package in KERNELS.items()}
    facts |= {"cpu": cpu_model(), "capability": torch.backends.cpu.get_cpu_capability()}
    return facts | {"compiler": compiler()}


def cpu_model(table: Path = Path("/proc/cpuinfo")) -> str:
    """The name of the CPU from Linux's /proc/cpuinfo. Without that file it is Python's name."""
    lines = table.read_text().splitlines() if table.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def compiler() -> str:
    """The first line of `--version` of the C++ compiler that Inductor finds first, or "none"."""
    name = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if name is None:
        return "none"
    done = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or [name])[0]


def version(package: str) -> str:
    """The installed version of a package, or "none"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def driver() -> str:
    """The version of the GPU's driver. It is "" if nvidia-smi is missing or fails."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.splitlines()[0].strip()
