"""The one exception of the emulator, and addresses as messages print them."""

from .ptx import SHARED_BASE


class EmulatorError(Exception):
    """A fault, or a violation of a protocol, that the emulator found in a kernel."""


def shared_name(address: int) -> str:
    """A shared-memory address as an offset from the first byte that a kernel may use."""
    return f"shared+{address - SHARED_BASE:#x}"
