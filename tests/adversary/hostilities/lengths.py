"""Lengths and offsets that are changed, unequal, negative, past the end; what the caller changes
between forward and backward; the jagged family.
"""

from ..draft import Draft
from .table import fact, hostility
from .writing import VIEWS, write

CHANGES = (
    "{x}.add_(1)",
    "{x} -= 1",
    "{x}.clamp_(max=2)",
    "{x}[0] = 1",
    "{x}.mul_(2)",
    "{x}.zero_()",
    "{x}.fill_(3)",
    "{x}.copy_({x} + 2)",
    "torch._foreach_add_([{x}], 2)",
    "{x}[:].add_(2)",
    "{x}.view(-1).sub_(1)",
    "{x}.data.add_(1)",
    "{x}.detach().add_(2)",
    "{x}.index_fill_(0, torch.tensor([0]), 4)",
    "{x}.masked_fill_({x} > 2, 1)",
)


def column(draft: Draft, name: str) -> str:
    """[B] brought to the rank of the scores."""
    return f"{name}[{', '.join(':' if dim == 'b' else 'None' for dim in draft.dims)}]"


def _lens(draft: Draft, values: object = None, kind: str = "int64") -> str:
    drawn = values or f"ints 0 {draft.sizes['m']}"
    return draft.operand("lens", "b", kind=kind, values=drawn)


def _compare(draft: Draft, lens: str) -> str:
    text = draft.pick(
        "torch.arange(m) < {x}",
        "{x} > torch.arange(m)",
        "~(torch.arange(m) >= {x})",
        "torch.arange(m) + 1 <= {x}",
    )
    draft.emit(f"mask = {text.format(x=column(draft, lens))}")
    return "mask"


def _by_lengths(draft: Draft) -> str:
    return _compare(draft, _lens(draft))


def _changed_before(draft: Draft) -> str:
    lens = _lens(draft)
    if draft.coin():
        draft.emit(f"lens = {lens}{draft.pick('.clone()', ' + 0', '.int()', '.to(torch.int32)')}")
    draft.emit(draft.random.choice(CHANGES).format(x="lens"))
    return _compare(draft, "lens")


def _negative(draft: Draft) -> str:
    values = draft.pick(
        (-3, 99), (-1, 0), (2**31 - 1, -(2**31)), (0, 0), (1000, 2), (2**40, -(2**40))
    )
    return _compare(draft, _lens(draft, values))


def _of_rows_too(draft: Draft) -> str:
    rows = draft.operand("row_lens", "b", kind="int64", values=f"ints 0 {draft.sizes['n']}")
    _by_lengths(draft)
    draft.emit(f"mask = mask & (torch.arange(n)[:, None] < {column(draft, rows)})")
    return "mask"


def _narrow(draft: Draft) -> str:
    return _compare(draft, _lens(draft, kind=draft.pick("int32", "int16", "uint8", "int8")))


def _of_ends(draft: Draft) -> str:
    """Packed segments: positions are searched in offsets, which may have been changed."""
    draft.emit(f"ends = {_lens(draft, 'ints 1 3')}.cumsum(0)")
    if draft.coin(0.6):
        draft.emit(draft.random.choice(CHANGES[:10]).format(x="ends"))
    ends = column(draft, "ends")
    draft.emit_one(
        f"mask = torch.arange(m) < {ends}",
        "mask = torch.searchsorted(ends, torch.arange(n), right=True)[:, None]"
        " == torch.searchsorted(ends, torch.arange(m), right=True)",
        f"mask = torch.arange(m) < ({ends}).int() - 1",
    )
    return "mask"


fact("lengths: changed before the mask", exact=True, mask=_changed_before, pure_inputs=False)
fact("lengths: negative or past the end", exact=True, mask=_negative)
fact("lengths: of rows and of keys", exact=True, mask=_of_rows_too)
fact("lengths: in other dtypes", exact=True, mask=_narrow)
fact("lengths: from a cumsum", exact=False, mask=_of_ends)


@hostility(
    "lengths: changed after the mask", exact=False, at=("late", "after", "end"), mask=_by_lengths,
    pure_inputs=False,
)  # fmt: skip
def _(draft: Draft, stage: str) -> None:
    draft.emit(draft.random.choice(CHANGES).format(x="lens"))


BETWEEN = "the caller writes before the backward"
fact(
    BETWEEN, exact=False, mask=_by_lengths, training="all", wrap=None,
    masking=["torch.where({x}, {s}, 0.0)", "{s} * {x}"],
    before_backward=["lens.add_(3)", "lens.zero_()", "lens[0] = 1"],
)  # fmt: skip


@hostility(
    BETWEEN, exact=False, at="middle", training="all", wrap=None,
    before_backward=["shift.mul_(0.5)", "shift.data.zero_()"],
)  # fmt: skip
def _(draft: Draft) -> None:
    """A bias that asks for no gradient: eager did not save it."""
    draft.assign("middle", f"{draft.s} + {draft.operand('shift', 'n m', grad=False)}")


def _by_times(draft: Draft) -> str:
    times = draft.operand("times", "m", kind="int64", values="ints 0 9")
    draft.emit(f"mask = torch.arange(n)[:, None] >= {times}")
    return "mask"


fact(
    BETWEEN, exact=False, mask=_by_times, training="all", wrap=None,
    before_backward=["times.add_(3)", "times.zero_()", "times[0] = 9"],
)  # fmt: skip


# The jagged family: what is settled here is read by `jagged.write_jagged`.


def _jagged(draft: Draft, **facts: object) -> None:
    """fbgemm has no fp64; torch's own functions want full offsets, and have no derivative."""
    draft.settle(family="jagged", wrap=None, dtype=draft.pick("float32", "float32", "bfloat16"))
    draft.settle(**facts)
    if not facts and draft.coin(0.3):
        draft.settle(library="aten", training="none")
    else:
        draft.settle(
            library="fbgemm" if facts.get("given_offsets") else draft.pick("fbgemm", "gdpa")
        )


@hostility("jagged", exact=True)
def _(draft: Draft) -> None:
    _jagged(draft)


@hostility("jagged: empty sequences", exact=True)
def _(draft: Draft) -> None:
    _jagged(draft, lengths=draft.pick((0, 3), (4, 0), (0, 0, 2), (0, 0)))


@hostility("jagged: sequences longer than the padding", exact=True)
def _(draft: Draft) -> None:
    _jagged(draft, padding=draft.pick(1, 2, 3), lengths=(4, 2, 5))


CHANGED = "jagged: lengths or offsets changed"


@hostility(CHANGED, exact=False, by_cumsum=True, slack=6, given_offsets=None)
def _(draft: Draft) -> None:
    text = draft.pick("{x}.add_(2)", "{x}.clamp_(max=4)", "{x}[0] += 1", "{x}[:].add_(1)",
                      "{x}.sub_(1)", "{x}.data.add_(3)", "{x}.view(-1).clamp_(max=3)",
                      "{x}[-1:].sub_(1)", "torch._foreach_add_([{x}], 2)")  # fmt: skip
    _jagged(draft, offsets_written=text, masked_by_lengths=draft.coin(0.7))


@hostility(CHANGED, exact=False, masked_by_lengths=True)
def _(draft: Draft) -> None:
    _jagged(draft, lengths_written=draft.random.choice(CHANGES[:8]), given_offsets=None)


@hostility("jagged: two offsets", exact=False, given_offsets=None, slack=3)
def _(draft: Draft) -> None:
    text = draft.pick(
        "{x}.clamp(max=4)",
        "{x} - ({x} > 2).long()",
        "{x}.flip(0).sort().values // 2",
        "torch.cat([{x}[:1], {x}[1:] - 1])",
        "{x}.clone()",
        "{x} + 1",
    )
    _jagged(draft, other_offsets=text, other_for=draft.pick(("out",), *"kvq", "kv"))
    draft.settle(other_written=draft.coin(), by_cumsum=draft.coin(0.8))


@hostility("jagged: offsets that are not monotonic", exact=False)
def _(draft: Draft) -> None:
    values = draft.pick((0, 5, 3, 7), (0, 4, 4, 2), (2, 3, 1, 6), (0, 7, 0, 7), (1, 1, 5, 6))
    _jagged(draft, given_offsets=values, slack=2)


@hostility("jagged: padded rows are written", exact=False)
def _(draft: Draft) -> None:
    def act(draft: Draft) -> None:
        x = draft.pick("q", "k", "v")
        draft.emit(f"{x} = {x} * 1.0")
        write(draft, x, draft.random.choice(("{x}", *VIEWS)))

    _jagged(draft)
    draft.at("before", act)


@hostility("jagged: padded rows are written", exact=False)
def _(draft: Draft) -> None:
    _jagged(draft, fill=draft.pick("1.0", "-2.0", "float('nan')"), specials=True)
