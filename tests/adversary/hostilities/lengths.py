"""Lengths and offsets that are changed, unequal, negative, past the end; what the caller changes
between forward and backward; the jagged family.
"""

from ..draft import Draft
from ..regions import score_shape
from .table import hostility
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


def _column(draft: Draft, name: str) -> str:
    """[B] brought to the rank of the scores."""
    return f"{name}[:, " + ", ".join(["None"] * (len(score_shape(draft)) - 1)) + "]"


def _by_lengths(draft: Draft, values: object = None, kind: str = "int64") -> str:
    z = draft.sizes
    drawn = values or f"ints 0 {z['m']}"
    return draft.operand("lens", z["b"], kind=kind, values=drawn, grad=False)


def _compare(draft: Draft, lens: str) -> str:
    column = _column(draft, lens)
    draft.emit(
        "mask = "
        + draft.pick(
            f"torch.arange(m) < {column}",
            f"{column} > torch.arange(m)",
            f"~(torch.arange(m) >= {column})",
            f"torch.arange(m) + 1 <= {column}",
        )
    )
    return "mask"


@hostility("lengths: changed before the mask", exact=True)
def _(draft: Draft) -> None:
    draft.settle(pure_inputs=False)

    def make(draft: Draft) -> str:
        lens = _by_lengths(draft)
        if draft.coin(0.5):
            draft.emit(
                f"lens = {lens}{draft.pick('.clone()', ' + 0', '.int()', '.to(torch.int32)')}"
            )
        draft.emit(draft.random.choice(CHANGES).format(x="lens"))
        return _compare(draft, "lens")

    draft.settle(mask=make)


@hostility("lengths: changed after the mask", exact=False)
def _(draft: Draft) -> None:
    def make(draft: Draft) -> str:
        return _compare(draft, _by_lengths(draft))

    draft.settle(mask=make, pure_inputs=False)
    text = draft.random.choice(CHANGES)
    draft.at(draft.pick("late", "after", "end"), lambda draft: draft.emit(text.format(x="lens")))


@hostility("lengths: negative or past the end", exact=True)
def _(draft: Draft) -> None:
    values = draft.pick(
        (-3, 99), (-1, 0), (2**31 - 1, -(2**31)), (0, 0), (1000, 2), (2**40, -(2**40))
    )

    def make(draft: Draft) -> str:
        return _compare(draft, _by_lengths(draft, values))

    draft.settle(mask=make)


@hostility("lengths: of rows and of keys", exact=True)
def _(draft: Draft) -> None:
    def make(draft: Draft) -> str:
        z = draft.sizes
        rows = draft.operand(
            "row_lens", z["b"], kind="int64", values=f"ints 0 {z['n']}", grad=False
        )
        _compare(draft, _by_lengths(draft))
        draft.emit(f"mask = mask & (torch.arange(n)[:, None] < {_column(draft, rows)})")
        return "mask"

    draft.settle(mask=make)


@hostility("lengths: in other dtypes", exact=True)
def _(draft: Draft) -> None:
    kind = draft.pick("int32", "int16", "uint8", "int8")

    def make(draft: Draft) -> str:
        return _compare(draft, _by_lengths(draft, kind=kind))

    draft.settle(mask=make)


@hostility("lengths: from a cumsum", exact=False)
def _(draft: Draft) -> None:
    """Packed segments: positions are searched in offsets, which may have been changed."""
    changed = draft.coin(0.6)

    def make(draft: Draft) -> str:
        lens = _by_lengths(draft, "ints 1 3")
        draft.emit(f"ends = {lens}.cumsum(0)")
        if changed:
            draft.emit(draft.random.choice(CHANGES[:10]).format(x="ends"))
        column = _column(draft, "ends")
        draft.emit_one(
            f"mask = torch.arange(m) < {column}",
            "mask = torch.searchsorted(ends, torch.arange(n), right=True)[:, None]"
            " == torch.searchsorted(ends, torch.arange(m), right=True)",
            f"mask = torch.arange(m) < ({column}).int() - 1",
        )
        return "mask"

    draft.settle(mask=make)


@hostility("the caller writes before the backward", exact=False)
def _(draft: Draft) -> None:
    draft.settle(training="all", masking=draft.pick("torch.where({x}, {w}, 0.0)", "{w} * {x}"))
    draft.settle(before_backward=draft.pick("lens.add_(3)", "lens.zero_()", "lens[0] = 1"))
    draft.settle(mask=lambda draft: _compare(draft, _by_lengths(draft)), wrap=None)


@hostility("the caller writes before the backward", exact=False)
def _(draft: Draft) -> None:
    """A bias that asks for no gradient, positions, a counter: eager saved none of them."""
    draft.settle(training="all", wrap=None)
    if draft.coin():
        draft.settle(before_backward=draft.pick("shift.mul_(0.5)", "shift.data.zero_()"))

        def act(draft: Draft) -> None:
            z = draft.sizes
            shift = draft.operand("shift", z["n"], z["m"], grad=False)
            draft.assign("middle", f"{draft.s} + {shift}")

        draft.at("middle", act)
        return
    draft.settle(before_backward=draft.pick("times.add_(3)", "times.zero_()", "times[0] = 9"))

    def make(draft: Draft) -> str:
        z = draft.sizes
        times = draft.operand("times", z["m"], kind="int64", values="ints 0 9", grad=False)
        draft.emit(f"mask = torch.arange(n)[:, None] >= {times}")
        return "mask"

    draft.settle(mask=make)


# The jagged family: what is settled here is read by `jagged.write_jagged`.


def _jagged(draft: Draft, **facts: object) -> None:
    """fbgemm has no fp64; torch's own functions want full offsets, and have no derivative."""
    draft.settle(family="jagged", wrap=None, dtype=draft.pick("float32", "float32", "bfloat16"))
    draft.settle(**facts)
    if not facts and draft.coin(0.3):
        draft.settle(library="aten", training="none")
    else:
        draft.settle(library="fbgemm")


@hostility("jagged", exact=True)
def _(draft: Draft) -> None:
    _jagged(draft)


@hostility("jagged: empty sequences", exact=True)
def _(draft: Draft) -> None:
    _jagged(draft, lengths=draft.pick((0, 3), (4, 0), (0, 0, 2), (0, 0)))


@hostility("jagged: sequences longer than the padding", exact=True)
def _(draft: Draft) -> None:
    _jagged(draft, padding=draft.pick(1, 2, 3), lengths=(4, 2, 5))


@hostility("jagged: lengths or offsets changed", exact=False)
def _(draft: Draft) -> None:
    text = draft.pick("{x}.add_(2)", "{x}.clamp_(max=4)", "{x}[0] += 1", "{x}[:].add_(1)",
                      "{x}.sub_(1)", "{x}.data.add_(3)", "{x}.view(-1).clamp_(max=3)",
                      "{x}[-1:].sub_(1)", "torch._foreach_add_([{x}], 2)")  # fmt: skip
    _jagged(draft, offsets_written=text)
    draft.settle(by_cumsum=True, slack=6, given_offsets=None)
    draft.settle(masked_by_lengths=draft.coin(0.7))


@hostility("jagged: lengths or offsets changed", exact=False)
def _(draft: Draft) -> None:
    _jagged(draft, lengths_written=draft.random.choice(CHANGES[:8]), given_offsets=None)
    draft.settle(masked_by_lengths=True)


@hostility("jagged: two offsets", exact=False)
def _(draft: Draft) -> None:
    text = draft.pick(
        "{x}.clamp(max=4)",
        "{x} - ({x} > 2).long()",
        "{x}.flip(0).sort().values // 2",
        "torch.cat([{x}[:1], {x}[1:] - 1])",
        "{x}.clone()",
        "{x} + 1",
    )
    _jagged(draft, other_offsets=text, slack=3)
    draft.settle(other_written=draft.coin(), by_cumsum=draft.coin(0.8), given_offsets=None)
    draft.settle(other_for=draft.pick("out", "k", "v", "q", "kv"))


@hostility("jagged: offsets that are not monotonic", exact=False)
def _(draft: Draft) -> None:
    values = draft.pick((0, 5, 3, 7), (0, 4, 4, 2), (2, 3, 1, 6), (0, 7, 0, 7), (1, 1, 5, 6))
    _jagged(draft, given_offsets=values, slack=2)


@hostility("jagged: padded rows are written", exact=False)
def _(draft: Draft) -> None:
    _jagged(draft)

    def act(draft: Draft) -> None:
        x = draft.pick("q", "k", "v")
        draft.emit(f"{x} = {x} * 1.0")
        write(draft, x, draft.random.choice(("{x}", *VIEWS)))

    draft.at("before", act)


@hostility("jagged: padded rows are written", exact=False)
def _(draft: Draft) -> None:
    _jagged(draft, fill=draft.pick("1.0", "-2.0", "float('nan')"), specials=True)
