"""How a compiled kernel is launched again and again, with a stand-in for CuTe DSL's."""

import ctypes

import pytest

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.launcher import PackedLaunch, WordLauncher


class Executor:
    """What `to` of a compiled kernel gives. Its list of arguments is one for all launches, and ends
    with the address of the result."""

    def __init__(self, kernel: "Kernel") -> None:
        self.kernel, self.cuda_result = kernel, ctypes.c_int32(0)
        self.list = (ctypes.c_void_p * 8)()

    def _get_invoke_packed_args(self, places: list) -> ctypes.Array:
        self.kernel.listed += 1
        for i, place in enumerate(places):
            self.list[i] = place.value
        self.list[len(places)] = ctypes.addressof(self.cuda_result)
        return self.list

    def capi_func(self, found: ctypes.Array) -> None:
        words = [ctypes.c_int64.from_address(found[i]).value for i in range(self.kernel.count)]
        self.kernel.launches.append(words)
        self.cuda_result.value = self.kernel.error


class Kernel:
    def __init__(self, count: int, error: int = 0) -> None:
        self.count, self.error, self.listed, self.launches = count, error, 0, []

    def generate_execution_args(self, *arguments):
        return [place for x in arguments for place in x.__c_pointers__()], None

    def run_compiled_program(self, places: list) -> None:
        self.launches.append([ctypes.c_int64.from_address(p.value).value for p in places])

    def to(self, device: None) -> Executor:
        return Executor(self)


class Older(Kernel):
    """Of a version that has no such list."""

    def to(self, device: None) -> object:
        return object()


@pytest.mark.parametrize("kind, listed", [(Kernel, 1), (Older, 0)])
def test_every_launch_finds_its_words(kind: type[Kernel], listed: int) -> None:
    kernel = kind(3)
    run = WordLauncher(kernel, 3)
    given = [[1, 2, 3], [4, 5, 6], [-7, 1 << 40, 0], [1, 2, 3]]
    for words in given:
        run(*words)
    assert kernel.launches == given and kernel.listed == listed


def test_a_list_that_others_overwrite_is_not_relied_on() -> None:
    kernel = Kernel(2)
    run = WordLauncher(kernel, 2)
    run(1, 2)
    inner: PackedLaunch = run.run
    ctypes.memset(inner.executor.list, 0, ctypes.sizeof(inner.executor.list))
    run(3, 4)
    assert kernel.launches[-1] == [3, 4]


def test_a_launch_that_fails_raises() -> None:
    kernel = Kernel(1, error=700)
    run = WordLauncher(kernel, 1)
    run(1)
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        run(2)
