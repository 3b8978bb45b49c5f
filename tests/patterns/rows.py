"""The idiom table as data: a row is a small function, its operands (`tests.operands`), a verdict.

    @fuse(q="b h n d", k="b h m d", v="b h m e")
    def silu_attention(q, k, v): ...

Verdicts: `fuse` (must be rewritten, `regions` of them), `refuse` (must be left as it is, for one of
the given codes), `leave` (not even a candidate, or NOT_GDPA; left as it is), `either` (rewritten or
not, and exact). A row is judged in several modes by `test_idioms`.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from tests._judge import compare
from tests._recorder import Recorder
from tests.operands import make_operands
from tests.tolerances import FP64_RELATIVE

SIZES = {"b": 2, "h": 3, "g": 2, "n": 5, "m": 7, "d": 4, "e": 6}
OTHER_SIZES = {**SIZES, "b": 4, "n": 8, "m": 6}


# Where a function has one of these, its graph has symbols beside those of its operands.
NAMES_OF_SIZES = {
    *("shape", "size", "numel", "len", "view", "reshape", "flatten", "unflatten", "expand"),
    *("arange", "ones", "zeros", "full", "tril", "triu", "repeat", "repeat_interleave"),
    *("split", "chunk", "narrow"),
}  # fmt: skip


def _names(code: types.CodeType) -> set[str]:
    """What a function calls and reads, functions within it included."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*inner)


@dataclass(frozen=True)
class Row:
    """One idiom. `codes`: names of `rejection.Code`, any of which will do.

    `gradient_relative`: the bound of fp64 gradients, where torch's own are less exact.

    `varies`: `make test` lets sizes vary too. It always does so where the function names a size.
    """

    function: Callable
    specs: Mapping[str, str]
    verdict: str
    regions: int = 1
    codes: tuple[str, ...] = ()
    gradient_relative: float = FP64_RELATIVE
    varies: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def names_a_size(self) -> bool:
        return not NAMES_OF_SIZES.isdisjoint(_names(self.function.__code__))


ROWS: list[Row] = []
HEADS = {"q": "b h n d", "k": "b h m d", "v": "b h m e"}
SINGLE = {"q": "b n d", "k": "b m d", "v": "b m e"}
SELF = {"q": "b h n d", "k": "b h n d", "v": "b h n e"}


def _row(verdict: str, specs: Mapping[str, str], **more) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        ROWS.append(Row(function, dict(specs), verdict, **more))
        return function

    return register


def fuse(
    regions: int = 1,
    gradient_relative: float = FP64_RELATIVE,
    varies: bool = False,
    **specs: str,
) -> Callable[[Callable], Callable]:
    """Must be rewritten."""
    how = {"regions": regions, "gradient_relative": gradient_relative, "varies": varies}
    return _row("fuse", specs, **how)


def refuse(*codes: str, varies: bool = False, **specs: str) -> Callable[[Callable], Callable]:
    """Must be left alone, for one of these codes."""
    return _row("refuse", specs, codes=codes, varies=varies)


def leave(varies: bool = False, **specs: str) -> Callable[[Callable], Callable]:
    """Must be left alone; if it is reported at all, as NOT_GDPA."""
    return _row("leave", specs, varies=varies)


def either(varies: bool = False, **specs: str) -> Callable[[Callable], Callable]:
    """Rewritten or refused, but exact."""
    return _row("either", specs, varies=varies)


def rows(row: Callable[..., Callable], specs: Mapping[str, str], **functions: Callable) -> None:
    """Rows of one expression each, such as `rows(fuse, HEADS, plain=lambda q, k, v: q @ k.mT @ v)`.
    Of the specs a row has those that its arguments name.
    """
    for name, function in functions.items():
        function.__name__ = name
        row(**{x: specs[x] for x in inspect.signature(function).parameters})(function)


def judge(
    function: Callable,
    specs: Mapping[str, str] = HEADS,
    *,
    operands: Mapping[str, object] | None = None,
    training: bool = True,
    dtype: torch.dtype = torch.float64,
    fullgraph: bool = True,
    dynamic: bool | None = None,
    **tolerance: float,
) -> Recorder:
    """Compile with the recorder and compare with eager; the recorder. operands: in place of those
    of the specs.
    """
    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder, fullgraph=fullgraph, dynamic=dynamic)
    operands = operands or make_operands(specs, SIZES, dtype=dtype)
    fault = compare(function, compiled, operands, training=training, **tolerance)
    assert not fault, f"{fault}\n{recorder.graphs[-1].after}"
    assert all(graph.untouched for graph in recorder.graphs if not graph.matches)
    return recorder


def fused(
    function: Callable, specs: Mapping[str, str] = HEADS, *, regions: int = 1, **how
) -> Recorder:
    """Exact, and rewritten."""
    recorder = judge(function, specs, **how)
    assert len(recorder.matches) == regions, recorder.why()
    return recorder


def refused(
    codes: set[str], function: Callable, specs: Mapping[str, str] = HEADS, **how
) -> Recorder:
    """Left as it is, for one of these codes."""
    recorder = judge(function, specs, **how)
    assert not recorder.matches
    assert {refusal.code.name for refusal in recorder.rejections} & codes, recorder.why()
    return recorder


def proving(check: Callable[..., object]) -> Callable[..., Callable]:
    """A decorator that makes a test of a program: what the check says of it, and of the rest."""

    def with_arguments(*args: object, **how: object) -> Callable[[Callable], Callable]:
        def decorate(program: Callable) -> Callable[[], None]:
            def test() -> None:
                check(program, *args, **how)

            test.__name__, test.__doc__ = program.__name__, program.__doc__
            return test

        return decorate

    return with_arguments


is_exact, is_fused = proving(judge), proving(fused)
is_refused = proving(lambda program, codes, *specs, **how: refused(codes, program, *specs, **how))
