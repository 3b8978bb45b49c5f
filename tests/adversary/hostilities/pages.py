"""Keys and values in pages: tables that repeat and wrap, gathers that are none, writes around."""

from ..draft import Draft
from .table import hostility
from .writing import ANY, ELEMENTS, WRITES, write

POOL = 5  # pages
FACTS = {"training": "none", "plain_operands": True, "family": ["heads", "heads", "batch"]}
# From pool [P, R, (H,) D] and table [B, PAGES] to [B, PAGES, R, (H,) D].
COPIES = (
    "{pool}[table]",
    "{pool}[table]",
    "{pool}.index_select(0, table.clamp(min=0).flatten()).view(b, {pages}, *{pool}.shape[1:])",
    "F.embedding(table.clamp(min=0), {pool}.flatten(1)).view(b, {pages}, *{pool}.shape[1:])",
    "torch.stack([{pool}, {pool} * 2])[0][table]",
    "{pool}[table.int()]",
    "{pool}.flatten(0, 1)[table[..., None] * {rows} + torch.arange({rows})]",
)
# Not every row of every page in its order: the copy has to stay, or the keys have another order.
OTHERS = (
    "{pool}[table.flip(1)]",
    "{pool}[table].flip(2)",
    "{pool}[table].roll(1, 1)",
    "{pool}[table].transpose(1, 2).reshape(b, {pages}, {rows}, *{pool}.shape[2:])",
    "{pool}.flatten(0, 1)[table[..., None] + torch.arange({rows})]",
    "{pool}[(table + 1) % 5]",
    "{pool}[table].clone()",
    "{pool}[table] * 0.5",
)
TABLES = ("ints 0 4", "ints 0 4", "ints 0 1", "ints -5 4", (-1,))
# Of the table, whose pages stay within the pools.
NUMBERS = ("table.zero_()", "table[:, 0] = 1", "table.copy_(table.flip(1))", "table.neg_().add_(4)",
           "table.clamp_(max=2)", "table.view(-1)[0] = 3")  # fmt: skip


def _operands(draft: Draft) -> None:
    """Pools and a table, before anything reads them."""
    rows, pages = draft.settled["page"]
    heads = ["h"] if draft.settled["family"] == "heads" else []
    for x, width in (("k", "d"), ("v", "e")):
        draft.operand(f"{x}_pool", [str(POOL), str(rows), *heads, width], grad=False)
    values = draft.random.choice(TABLES)
    draft.operand("table", f"b {pages}", kind="int64", values=values, grad=False)


def _gather(draft: Draft, forms: dict[str, str]) -> None:
    """k and v out of the pools, by their forms."""
    rows, pages = draft.settled["page"]
    for x, form in forms.items():
        copy = form.format(pool=f"{x}_pool", rows=rows, pages=pages)
        heads = draft.settled["family"] == "heads"
        draft.emit(f"{x} = {copy}.flatten(1, 2){'.transpose(1, 2)' if heads else ''}")
        setattr(draft, x, x)


def _copies(draft: Draft) -> dict[str, str]:
    form = draft.pick(*COPIES)
    return {"k": form, "v": form if draft.coin(0.7) else draft.pick(*COPIES)}


def _sized(draft: Draft) -> None:
    rows, pages = draft.pick(1, 2, 3, 4), draft.pick(1, 2, 2, 3)
    draft.settle(page=(rows, pages), sizes={"m": rows * pages})
    draft.at("start", _operands)


@hostility("keys in pages", exact=True, **FACTS)
def _(draft: Draft) -> None:
    _sized(draft)
    draft.at("before", lambda draft: _gather(draft, _copies(draft)))


@hostility("keys in pages", exact=True, pure_inputs=False, **FACTS)
def _(draft: Draft) -> None:
    """As serving code writes new rows: through the table, a slice or a copy of whole pages."""
    _sized(draft)

    def act(draft: Draft) -> None:
        for pool in draft.random.sample(("k_pool", "v_pool"), draft.pick(1, 2)):
            draft.emit_one(
                "{pool}[table[:, 0], 0] = 0.5",
                "{pool}.index_put_((table[:, -1], torch.zeros_like(table[:, 0])), {one})",
                "{pool}.index_put_((table[:, 0],), {one}, accumulate=True)",
                "{pool}.index_copy_(0, torch.tensor([1, 3]), {pool}[:2] * 2)",
                "{pool}.view(-1)[::3].mul_(0.5)",
                "{pool}[2:].zero_()",
                pool=pool,
                one=f"torch.ones((), dtype={pool}.dtype)",
            )
        _gather(draft, _copies(draft))

    draft.at("before", act)


@hostility("pages written in between", exact=False, **FACTS)
def _(draft: Draft) -> None:
    _sized(draft)

    def act(draft: Draft) -> None:
        forms = {x: draft.pick(*OTHERS) for x in "kv"}
        if draft.coin(0.6):
            forms[draft.pick("k", "v")] = draft.pick(*COPIES)
        _gather(draft, forms)

    draft.at("before", act)


@hostility("pages written in between", exact=False, pure_inputs=False, **FACTS)
def _(draft: Draft) -> None:
    """The copies are made; then the pools, the table or a copy change."""
    _sized(draft)

    def act(draft: Draft) -> None:
        x = draft.pick("k_pool", "v_pool", "table", "table", draft.k, draft.v)
        if x == "table":
            draft.emit_one(*NUMBERS)
        else:
            write(draft, x, draft.random.choice(ANY) if draft.coin() else "{x}", WRITES + ELEMENTS)

    draft.at("before", lambda draft: _gather(draft, _copies(draft)))
    draft.at(draft.pick("before", "scores", "middle", "late", "after", "end"), act)
