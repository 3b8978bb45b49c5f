"""What a hostility is."""

from collections.abc import Callable
from dataclasses import dataclass

from ..draft import Draft


@dataclass(frozen=True)
class Hostility:
    """One way to be hostile.

    exact: a right rewrite exists and nothing hazardous stands in its way. plan: settles facts of
    the draft, and hangs callbacks on its stages.
    """

    name: str
    exact: bool
    plan: Callable[[Draft], None]


TABLE: list[Hostility] = []


def hostility(name: str, *, exact: bool, at: str = "") -> Callable:
    """Put a plan into the table. at: the stage where it is called, instead of at once."""

    def register(plan: Callable[[Draft], None]) -> Callable[[Draft], None]:
        def settled(draft: Draft) -> None:
            if at:
                draft.at(at, plan)
            else:
                plan(draft)
            draft.danger(not exact)

        TABLE.append(Hostility(name, exact, settled))
        return plan

    return register
