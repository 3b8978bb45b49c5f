"""The first line of every run: the command, the machine, the versions and the date.

docs/benchmarks.py reads it: a table states them once, and a figure without its machine is no
figure.
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
    """argv: the arguments behind `bench`."""
    command = shlex.join(["python", "-m", "gdpa_inductor", "bench", *argv])
    return {"machine": machine(device), "command": command}


def machine(device: str) -> Row:
    """Where and when: a figure without its machine is no figure."""
    found: Row = {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version()}
    found["torch"] = torch.__version__
    if device == "cuda":
        found |= {
            "gpu": torch.cuda.get_device_name(),
            "driver": driver(),
            "cuda": torch.version.cuda,
        }
        return found | {name: version(package) for name, package in KERNELS.items()}
    found |= {"cpu": cpu_model(), "capability": torch.backends.cpu.get_cpu_capability()}
    return found | {"compiler": compiler()}


def cpu_model(table: Path = Path("/proc/cpuinfo")) -> str:
    """As Linux names it; elsewhere what Python knows."""
    lines = table.read_text().splitlines() if table.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def compiler() -> str:
    """The C++ compiler that Inductor finds first, by the first line of its version."""
    name = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if name is None:
        return "none"
    done = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or [name])[0]


def version(package: str) -> str:
    """As installed, or "none"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def driver() -> str:
    """Of the GPU, or "" where nvidia-smi does not say."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.splitlines()[0].strip()
