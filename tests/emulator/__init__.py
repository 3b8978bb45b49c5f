"""A functional emulator of the PTX that CuTe DSL generates for sm_100a and sm_90a.

See docs/emulator.md."""

from .device import device
from .faults import EmulatorError
from .recording import recording
from .runner import Report, run

__all__ = ["EmulatorError", "Report", "device", "recording", "run"]
