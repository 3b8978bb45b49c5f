"""The idiom table as data: a row is a small function, its operands (`tests.operands`), a verdict.

    @fuse(q="b h n d", k="b h m d", v="b h m e")
    def silu_attention(q, k, v): ...

Verdicts: `fuse` (must be rewritten, `regions` of them), `refuse` (must be left as it is, for one of
the given codes), `leave` (not even a candidate, or NOT_GDPA; left as it is), `either` (rewritten or
not, and exact). A row is judged in several modes by `test_idioms`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

SIZES = {"b": 2, "h": 3, "g": 2, "n": 5, "m": 7, "d": 4, "e": 6}
OTHER_SIZES = {**SIZES, "b": 4, "n": 8, "m": 6}


@dataclass(frozen=True)
class Row:
    """One idiom. `codes`: names of `rejection.Code`, any of which will do."""

    function: Callable
    specs: Mapping[str, str]
    verdict: str
    regions: int = 1
    codes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.function.__name__


ROWS: list[Row] = []
HEADS = {"q": "b h n d", "k": "b h m d", "v": "b h m e"}
SINGLE = {"q": "b n d", "k": "b m d", "v": "b m e"}
SELF = {"q": "b h n d", "k": "b h n d", "v": "b h n e"}


def _row(verdict: str, specs: Mapping[str, str], **more) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        ROWS.append(Row(function, dict(specs), verdict, **more))
        return function

    return register


def fuse(regions: int = 1, **specs: str) -> Callable[[Callable], Callable]:
    """Must be rewritten."""
    return _row("fuse", specs, regions=regions)


def refuse(*codes: str, **specs: str) -> Callable[[Callable], Callable]:
    """Must be left alone, for one of these codes."""
    return _row("refuse", specs, codes=codes)


def leave(**specs: str) -> Callable[[Callable], Callable]:
    """Must be left alone; if it is reported at all, as NOT_GDPA."""
    return _row("leave", specs)


def either(**specs: str) -> Callable[[Callable], Callable]:
    """Rewritten or refused, but exact."""
    return _row("either", specs)
