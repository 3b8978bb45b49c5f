"""What a hostility is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..draft import Draft


@dataclass(frozen=True)
class Hostility:
    """One way to be hostile.

    exact: a right rewrite exists and nothing hazardous stands in its way. decoy: there is nothing
    left to rewrite. alone: no other one is done to the same program. plan: settles facts of the
    draft, and hangs callbacks on its stages.
    """

    name: str
    exact: bool
    plan: Callable[[Draft], None]
    decoy: bool = False
    alone: bool = False


TABLE: list[Hostility] = []


def hostility(
    name: str,
    *,
    exact: bool,
    at: str | tuple[str, ...] = (),
    decoy: bool = False,
    alone: bool = False,
    **facts: Any,
) -> Callable:
    """Put a plan into the table, or what is done at a stage.

    at: the stage, or several, one of which is drawn and is the second argument; without it the
    function is called at once. facts: of the draft, settled before; of a list one is drawn.
    """

    def register(plan: Callable) -> Callable:
        def settled(draft: Draft) -> None:
            draft.settle(**{name: _drawn(draft, fact) for name, fact in facts.items()})
            if isinstance(at, str):
                draft.at(at, plan)
            elif at:
                stage = draft.pick(*at)
                draft.at(stage, lambda draft: plan(draft, stage))
            else:
                plan(draft)
            draft.danger(not exact)

        TABLE.append(Hostility(name, exact, settled, decoy, alone))
        return plan

    return register


def _drawn(draft: Draft, fact: Any) -> Any:
    return draft.random.choice(fact) if isinstance(fact, list) else fact


def fact(name: str, **how: Any) -> None:
    """A hostility that settles facts and does no more."""
    hostility(name, **how)(lambda draft: None)


def lines(name: str, *texts: str, exact: bool, at: str | tuple[str, ...], **facts: Any) -> None:
    """A hostility that writes one of some lines; {x} is the scores or the weights."""
    stages = (at,) if isinstance(at, str) else at

    def act(draft: Draft, stage: str) -> None:
        line = draft.pick(*texts).replace("{x}", draft.subject(stage))
        draft.emit(line)
        draft.s = "s" if line.startswith("s = ") else draft.s

    hostility(name, exact=exact, at=stages, **facts)(act)
