"""How a kernel is launched again and again, with a stand-in for the runtime library."""

import ctypes

import pytest

from gdpa_inductor.kernels.cute.launcher import WordLauncher
from gdpa_inductor.kernels.cute.runtime import Kernel

INVALID = 2  # CuteDSLRT_Error_InvalidBinary


class Library:
    """In place of the library. error: of CUDA, from launches. invalid: nothing can be loaded."""

    def __init__(self, error: int = 0, invalid: bool = False) -> None:
        self.error, self.invalid, self.launches = error, invalid, []

    def CuteDSLRT_Module_Create_From_Bytes(self, module, content, size, libraries, count) -> int:
        self.content = content[: size.value]
        return INVALID * self.invalid

    def CuteDSLRT_Module_Get_Function(self, function, module, prefix) -> int:
        assert prefix == b"gdpa"
        return 0

    def CuteDSLRT_GetErrorString(self, error: int) -> bytes:
        return {INVALID: b"Invalid binary"}[error]

    def CuteDSLRT_Function_Run(self, function, places, count) -> int:
        *words, result = places[: count.value]
        self.launches.append([ctypes.c_int64.from_address(place).value for place in words])
        ctypes.c_int32.from_address(result).value = self.error
        return int(self.error != 0)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Library:
    found = Library(**getattr(request, "param", {}))
    monkeypatch.setattr("gdpa_inductor.kernels.cute.runtime.library", lambda: found)
    return found


def test_every_launch_finds_its_words(library: Library) -> None:
    run = WordLauncher(Kernel(b"content"), 3)
    given = [[1, 2, 3], [4, 5, 6], [-7, 1 << 40, 0], [1, 2, 3]]
    for words in given:
        run(*words)
    assert library.launches == given and library.content == b"content"


@pytest.mark.parametrize("library", [{"error": 700}], indirect=True)
def test_a_launch_that_fails_raises(library: Library) -> None:
    run = WordLauncher(Kernel(b"content"), 1)
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        run(1)


@pytest.mark.parametrize("library", [{"invalid": True}], indirect=True)
def test_what_cannot_be_loaded_raises(library: Library) -> None:
    with pytest.raises(RuntimeError, match="cannot be loaded: Invalid binary"):
        Kernel(b"content")
