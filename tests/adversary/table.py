"""The tables that a run prints."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from .runner import COUNTED, WRONG, Outcome

SHARE = 0.98  # of the plain programs that have to be rewritten


def plain(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The programs that must be rewritten, of those that count and were captured."""
    return [
        x for x in outcomes
        if x.label == "exact" and not x.hostilities and x.status in COUNTED and not x.lowered
    ]  # fmt: skip


def share(outcomes: Iterable[Outcome]) -> float:
    """Of the plain programs, how many were rewritten as far as they can be."""
    those = plain(outcomes)
    return 1 - sum(x.missed for x in those) / max(1, len(those))


def passed(outcomes: Iterable[Outcome]) -> bool:
    """No program wrong, no decoy rewritten, enough of the plain ones rewritten."""
    outcomes = list(outcomes)
    return not any(x.status in WRONG for x in outcomes) and share(outcomes) >= SHARE


def report(outcomes: Iterable[Outcome], seconds: float = 0.0) -> str:
    """Totals, a line for every hostility, and why exact programs were not rewritten."""
    outcomes = list(outcomes)
    status = Counter(x.status for x in outcomes)
    counted = [x for x in outcomes if x.status in COUNTED]
    exact = [x for x in counted if x.label == "exact"]
    lines = [
        f"{len(outcomes)} programs, {len(counted)} counted; {status['wrong']} wrong, "
        f"{status['crash']} crashes; eager raised on {status['eager']}, "
        f"Dynamo alone differed on {status['dynamo']}",
        f"exact: {len(exact)} ({len(exact) / max(1, len(counted)):.0%}), "
        f"rewritten {_rewritten(exact):.1%}",
    ]
    lines.append(f"plain: {len(plain(outcomes))}, rewritten as far as can be {share(outcomes):.1%}")
    if lowered := sum((Counter(x.lowered) for x in outcomes), Counter()):
        lines.append(f"lowered: {dict(lowered)}")
    for name in sorted({n for x in outcomes for n in x.forms}):
        actual = Counter(x.forms[name][0] for x in outcomes if name in x.forms)
        lines.append(f"form {name}: {dict(actual)}")
    if seconds:
        lines.append(f"{len(outcomes) / seconds:.1f} programs/s")
    return "\n".join([*lines, "", by_hostility(outcomes), "", refused(exact)])


def _rewritten(outcomes: list[Outcome]) -> float:
    return sum(x.matches > 0 for x in outcomes) / max(1, len(outcomes))


def by_hostility(outcomes: list[Outcome]) -> str:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        for name in outcome.hostilities:
            groups[name].append(outcome)
    columns = (
        f"{'count':>6}{'exact':>7}{'rewritten':>10}{'wrong':>6}{'crash':>6}{'eager':>6}{'dyn':>5}"
    )
    lines = [f"{'hostility':<52}{columns}  codes"]
    for name, group in sorted(groups.items()):
        counted = [x for x in group if x.status in COUNTED]
        exact = [x for x in counted if x.label == "exact"]
        status = Counter(x.status for x in group)
        rewritten = f"{_rewritten(exact):.0%}" if exact else "-"
        codes = Counter(code for x in counted for code in x.codes)
        said = " ".join(f"{c}:{n}" for c, n in codes.most_common(4))
        lines.append(
            f"{name:<52}{len(group):>6}{len(exact) / max(1, len(counted)):>7.0%}{rewritten:>10}"
            f"{status['wrong']:>6}{status['crash']:>6}{status['eager']:>6}{status['dynamo']:>5}"
            f"  {said}"
        )
    return "\n".join(lines)


def refused(exact: list[Outcome]) -> str:
    """Exact programs that stayed as they were: the code, how often, and a few seeds."""
    missed = [x for x in exact if x.missed or not x.matches]
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in missed:
        groups[" ".join(sorted(set(outcome.codes))) or "(no candidate seen)"].append(outcome)
    lines = [f"exact and not rewritten: {len(missed)}"]
    for code, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        names = Counter(n for x in group for n in x.hostilities).most_common(4)
        said = ", ".join(f"{n} ({c})" for n, c in names)
        seeds = " ".join(str(x.seed) for x in group[:6])
        lines.append(f"  {code}: {len(group)}: {said}; seeds {seeds}")
    return "\n".join(lines)
