"""Recorders in place of CuTe kernels, the forms of calls that tests of replays run, and what the
kernels are handed then. Nothing is compiled."""

import ctypes
import functools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from gdpa_inductor.kernels.cute import launch, plan, replay, weights
from gdpa_inductor.kernels.cute.backward import launch as backward_launch
from gdpa_inductor.kernels.cute.launcher import SIZES, TOTALS, Launcher, WordLauncher
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.lowerings.cute import calls

from .cute_cases import BF16

STREAM, CTAS = 5, 3
NUMBERS = SIZES + TOTALS + 1  # behind the addresses of matrices
B, H, D, LONGEST = 2, 4, 64, 40
BIAS = "a0:f[h,q_idx,kv_idx]; mul(silu(add(s,a0)),float(i0))"
CAUSAL = "where(ge(q_idx,kv_idx),silu(s),0.0)"


class Recorder:
    """In place of a kernel: the words that each launch finds."""

    def __init__(self) -> None:
        self.launches: list[list[int]] = []

    def at(self, places: Sequence[int]) -> Callable[[], None]:
        words = [ctypes.c_int64.from_address(place) for place in places]
        return lambda: self.launches.append([x.value for x in words])


def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The forward's and the backward's recorder."""
    forward, backward = Recorder(), Recorder()

    @functools.cache
    def launcher(config: Sm90Config) -> Launcher:
        return Launcher(forward if config.kernel == "forward" else backward, config)

    monkeypatch.setattr(launch, "launcher", launcher)
    find = plan.plan_of
    for module in (launch, backward_launch, weights):
        monkeypatch.setattr(module, "place", lambda *_: (CTAS, STREAM))
        monkeypatch.setattr(
            module, "plan_of", lambda o, fast, skip, kind: find(o, fast, skip, Sm90Config)
        )
    monkeypatch.setattr(replay, "current_stream", lambda _: STREAM)
    monkeypatch.setattr(plan, "PLANS", {})
    return [forward, backward]


def rooms(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Memory that replays ask for. It lies on the CPU."""
    outputs: list[Tensor] = []

    def empty_strided(size, strides, dtype, *_):
        outputs.append(torch.empty_strided(size, strides, dtype=dtype))
        return outputs[-1]

    monkeypatch.setattr(replay, "empty_strided", empty_strided)
    return outputs


def clears(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Those of replays: address, words, stream."""
    outputs: list[tuple[int, int, int]] = []
    monkeypatch.setattr(replay, "clear", lambda *call: outputs.append(call))
    return outputs


def ranking(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """In place of the kernel that ranks sequences."""
    recorder = Recorder()
    launcher = functools.cache(lambda *_: WordLauncher(recorder, 4))
    monkeypatch.setattr(launch, "word_launcher", launcher)
    monkeypatch.setattr(launch, "_is_ranked", lambda *_: True)
    return recorder


def recorded(site: calls.Site) -> int:
    """Forms that are replayed."""
    return sum(replay is not None for replay in site.replays.values())


def words(recorder: Recorder) -> list[int]:
    return recorder.launches[-1]


def matrix(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=BF16)


def with_(args: list, changes: dict[int, object]) -> list:
    return [changes.get(number, x) for number, x in enumerate(args)]


def dense(rows: int = LONGEST) -> list:
    return [*(matrix(B, H, rows, D) for _ in range(3)), [], [], "silu(s)"]


def offsets(rows: int) -> Tensor:
    return torch.tensor([0, rows // 3, rows], dtype=torch.int32)


def jagged(rows: int, program: str = "silu(s)", aux: tuple = (), scalars: tuple = ()) -> list:
    cu = offsets(rows)
    lengths = [cu, cu, LONGEST, LONGEST]
    return [*(matrix(rows, H, D) for _ in range(3)), [*aux], [*scalars], program, *lengths]


def biased(scalar: int = 7) -> list:
    return [*dense()[:3], [torch.zeros(H, LONGEST, LONGEST)], [scalar], BIAS]


def projection(rows: int) -> list:
    """Queries, keys and values beside each other, as one product leaves them."""
    whole = matrix(rows, 4 * H, D)
    return [*(whole[:, i * H : (i + 1) * H] for i in range(3)), *jagged(rows, CAUSAL)[3:]]


def apart(rows: int) -> list:
    """As many keys for each query, but other offsets."""
    other = torch.tensor([0, rows // 2, rows], dtype=torch.int64)
    return [*jagged(rows)[:6], other, other.clone(), LONGEST, 30]


def grouped(rows: int) -> list:
    return [matrix(rows, H, D), matrix(rows, 2, D), matrix(rows, 2, D), *jagged(rows)[3:]]


# Of so many rows, where a side is jagged. A projection leaves rows side by side, which are read in
# place.
KINDS: dict[str, Callable[[int], list]] = {
    "dense": lambda _: dense(),
    "masked": lambda _: [*dense()[:5], CAUSAL],
    "bias": lambda _: biased(),
    "dense, grouped": lambda _: with_(dense(), {1: matrix(B, 2, 24, D), 2: matrix(B, 2, 24, D)}),
    "transposed": lambda _: with_(dense(), {0: matrix(B, LONGEST, H, D).transpose(1, 2)}),
    "jagged": jagged,
    "projection": projection,
    "grouped": grouped,
    "jagged, bias": lambda rows: jagged(
        rows, BIAS, (torch.zeros(H, LONGEST, LONGEST),), (rows,)
    ),
    "queries": lambda rows: [
        matrix(rows, H, D), *dense()[1:], offsets(rows), None, LONGEST, 0
    ],
    "keys": lambda rows: [
        dense()[0], *jagged(rows)[1:3], [], [], CAUSAL, None, offsets(rows), 0, LONGEST
    ],
    "apart": apart,
}  # fmt: skip


def of_backward(args: list, letters: str = "qkv", wanted: bool = False) -> list:
    """The arguments of a backward from those of a forward. wanted: also gradients of operands."""
    query, value = args[0], args[2]
    grad = matrix(*(B, H, query.shape[2]) if query.dim() == 4 else query.shape[:2], value.shape[-1])
    needs = [letter in letters for letter in "qkv"] + [wanted] * len(args[3])
    return [grad, *args[:6], needs, *args[6:]]


def named(found: Sequence[int], tensors: Sequence[Tensor]) -> list[object]:
    """Words, in which addresses are (which of the tensors, bytes), or "room" if of none."""

    def name(word: int) -> object:
        begins = [x.data_ptr() for x in tensors]
        if word in begins:
            return begins.index(word), 0
        for number, x in enumerate(tensors):
            if begins[number] < word < begins[number] + x.nbytes:
                return number, word - begins[number]
        return "room" if word > 1 << 32 else word

    return [name(word) for word in found]


def tensors_of(args: list, results: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Of a call, operands of its program in their place; then its results."""
    flat = [y for x in args for y in (x if isinstance(x, list) else [x])]
    results = [results] if isinstance(results, Tensor) else results
    return [x for x in (*flat, *results) if isinstance(x, Tensor)]


def check_first_run(maker: Callable, args: list, results, recorder: Recorder, **options) -> None:
    """A site that has seen no call hands the kernels what the last call did, whose results these
    are. maker: of such a site."""
    last = recorder.launches[:]
    recorder.launches.clear()
    others = maker()(*args, **options)
    fresh = [named(x, tensors_of(args, others)) for x in recorder.launches]
    count = len(fresh)
    assert fresh and fresh == [named(x, tensors_of(args, results)) for x in last[-count:]]
    recorder.launches[:] = last
