"""A functional emulator of the sm_100a PTX that CuTe DSL generates; see docs/emulator.md."""

from .device import device
from .faults import EmulatorError
from .recording import recording
from .runner import Report, run

__all__ = ["EmulatorError", "Report", "device", "recording", "run"]
