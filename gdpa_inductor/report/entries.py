"""Graph breaks, skipped frames and listings of a report, and how places are printed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class GraphBreak:
    """A graph break of Dynamo. location: The user's "file:line". advice: What to change."""

    location: str
    reason: str
    advice: str

    def to_dict(self) -> dict[str, Any]:
        return {"location": self.location, "reason": self.reason, "advice": self.advice}


@dataclass(frozen=True)
class SkippedFrame:
    """A function that Dynamo ran without capturing it. So nothing in it can be fused."""

    name: str
    location: str
    reason: str
    advice: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "location": self.location,
            "reason": self.reason,
            "advice": self.advice,
        }


@dataclass(frozen=True)
class Line:
    """One node of a captured graph.

    match, rejection: The index in the report of the match or refusal that it belongs to, or None.
    """

    name: str
    code: str
    value: str
    location: str
    inputs: tuple[str, ...] = ()
    match: int | None = None
    rejection: int | None = None


@dataclass(frozen=True)
class Listing:
    """One graph as it was captured, before the rewrite."""

    title: str
    lines: tuple[Line, ...]


def shorten(location: str) -> str:
    """A path below the working directory is written from there."""
    path, colon, line = location.rpartition(":")
    if not location:
        return "(no source line)"
    try:
        return f"{Path(path).relative_to(Path.cwd())}{colon}{line}"
    except ValueError:
        return location
