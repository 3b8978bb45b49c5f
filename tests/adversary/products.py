"""The two products: `scores = q·k`, `output = weights·v`, in every spelling. A table of families.

heads, batch, leads   `q @ k.mT` in all of its spellings; any leading dims; k and v may be shared by
                      heads, q, k or v by the batch
bnhd                  the same, stored with the heads behind the rows
gqa, groups           fewer heads in k and v: repeated, expanded, or with a group dim of their own
stored                the key is stored transposed
mirrored              `k @ q.mT`, then `v.mT @ p` (or `p.mT @ v`): keys are the rows of the scores
einsum                any order of letters in every operand; operands may lack b or h
folded                b and h flattened into one dim around `bmm`
baddbmm               the bias goes in with the product, with alpha and beta
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from .draft import Draft
from .spellings import FIRST, FLAT_FIRST, FLAT_SECOND, RARE_FIRST, RARE_SECOND, SECOND
from .views import permuted_text

Dims = tuple[str, ...]
Text = Callable[[Draft], str]


@dataclass(frozen=True)
class Products:
    """Dims of the operands as the products take them, and how these are written.

    scores: dims of what `first` gives and `second` takes. output: those of what this one gives.
    enter: what is done to the operands before.
    """

    q: Dims
    k: Dims
    v: Dims
    scores: Dims
    output: Dims
    first: Text
    second: Text
    enter: Callable[[Draft], None] = field(default=lambda draft: None)


def _lead(lead: Dims) -> Products:
    return Products(
        (*lead, "n", "d"), (*lead, "m", "d"), (*lead, "m", "e"),
        (*lead, "n", "m"), (*lead, "n", "e"), _spelled("first", lead), _spelled("second", lead),
    )  # fmt: skip


def _spelled(which: str, lead: Dims) -> Text:
    """The first or the second product out of its table, of operands with these leading dims."""
    known, rare, flat = TABLES[which]
    rank = len(lead)
    more = {
        "axes": f"{rank}, {rank + 1}",
        "swap": ", ".join(map(str, (*range(rank), rank + 1, rank))),
        "o": "".join("a" if "*" in dim else dim for dim in lead),
        "outer": ", ".join(dim.replace("*", " * ") for dim in lead),
    }

    def text(draft: Draft) -> str:
        table = rare if draft.coin(0.04) else known | (flat if rank == 1 else {})
        name = draft.fact(which, draft.random.choice(list(table)))
        draft.note(f"{which} {name}")
        chosen = (known | flat | rare).get(name, name)
        return chosen.format(q=draft.q, k=draft.k, w=draft.w, v=draft.v, **more)

    return text


TABLES = {
    "first": (FIRST, RARE_FIRST, FLAT_FIRST),
    "second": (SECOND, RARE_SECOND, FLAT_SECOND),
}


def _plain(draft: Draft, left: str, right: str) -> str:
    """A product that may broadcast."""
    text = draft.pick("{0} @ {1}", "{0} @ {1}", "torch.matmul({0}, {1})", "{0}.matmul({1})")
    return text.format(left, right)


def heads(draft: Draft) -> Products:
    return _lead(("b", "h"))


def batch(draft: Draft) -> Products:
    return _lead(("b",))


def leads(draft: Draft) -> Products:
    """Other leading dims; an operand may have 1 in the place of one, if another has it in full."""
    options = [("h", "b"), ("b", "g", "h"), ("b", "h"), ("b",), ("b*h",)]
    lead = draft.random.choice(options[: 4 if draft.hostile else 5])
    shared = dict.fromkeys("qkv", lead)
    if "b*h" not in lead:
        for x in (draft.pick("q", "k"), "v"):
            if draft.coin(0.4):
                letter = draft.random.choice(lead)
                shared[x] = tuple("1" if dim == letter else dim for dim in lead)
                draft.note(f"shared {letter}")
    if set(shared.values()) == {lead}:
        return _lead(lead)
    turned = draft.pick(".mT", ".transpose(-2, -1)")
    return Products(
        (*shared["q"], "n", "d"), (*shared["k"], "m", "d"), (*shared["v"], "m", "e"),
        (*lead, "n", "m"), (*lead, "n", "e"),
        lambda draft: _plain(draft, draft.q, draft.k + turned),
        lambda draft: _plain(draft, draft.w, draft.v),
    )  # fmt: skip


def stored(draft: Draft) -> Products:
    lead = draft.pick(("b", "h"), ("b",))
    return Products(
        (*lead, "n", "d"), (*lead, "d", "m"), (*lead, "m", "e"), (*lead, "n", "m"),
        (*lead, "n", "e"), lambda draft: _plain(draft, draft.q, draft.k), _spelled("second", lead),
    )  # fmt: skip


def bnhd(draft: Draft) -> Products:
    """[B, N, H, D], as models with the heads last have it."""

    def enter(draft: Draft) -> None:
        for name in "qkv":
            draft.emit(f"{name} = {getattr(draft, name)}.transpose(1, 2)")
            setattr(draft, name, name)

    return Products(
        ("b", "n", "h", "d"), ("b", "m", "h", "d"), ("b", "m", "h", "e"), ("b", "h", "n", "m"),
        ("b", "h", "n", "e"), _spelled("first", ("b", "h")), _spelled("second", ("b", "h")), enter,
    )  # fmt: skip


def gqa(draft: Draft) -> Products:
    """`h` heads of keys and values, each for `g` heads of queries."""
    spelled = draft.pick(
        "{x}.repeat_interleave(g, dim=1)",
        "{x}[:, :, None].expand(-1, -1, g, -1, -1).reshape(b, h * g, m, {width})",
        "{x}[:, :, None].expand(b, h, g, m, {width}).flatten(1, 2)",
    )
    draft.note(f"repeated {spelled}")

    def enter(draft: Draft) -> None:
        for name, width in (("k", "d"), ("v", "e")):
            draft.emit(f"{name} = {spelled.format(x=getattr(draft, name), width=width)}")
            setattr(draft, name, name)

    return Products(
        ("b", "h*g", "n", "d"), ("b", "h", "m", "d"), ("b", "h", "m", "e"), ("b", "h*g", "n", "m"),
        ("b", "h*g", "n", "e"), _spelled("first", ("b", "h*g")),
        _spelled("second", ("b", "h*g")), enter,
    )  # fmt: skip


def groups(draft: Draft) -> Products:
    """The same with a dim for the groups."""
    first, second = draft.pick(
        (
            'torch.einsum("bhgnd,bhmd->bhgnm", {q}, {k})',
            'torch.einsum("bhgnm,bhme->bhgne", {w}, {v})',
        ),
        ("{q} @ {k}.unsqueeze(2).mT", "{w} @ {v}[:, :, None]"),
    )
    return Products(
        ("b", "h", "g", "n", "d"), ("b", "h", "m", "d"), ("b", "h", "m", "e"),
        ("b", "h", "g", "n", "m"), ("b", "h", "g", "n", "e"),
        lambda draft: first.format(q=draft.q, k=draft.k),
        lambda draft: second.format(w=draft.w, v=draft.v),
    )  # fmt: skip


def mirrored(draft: Draft) -> Products:
    lead = draft.pick(("b", "h"), ("h", "b"), ("b",), ("b", "g", "h"), ("b*h",))
    flip = draft.coin(0.6)

    def second(draft: Draft) -> str:
        if flip:
            return _plain(draft, f"{draft.v}.mT", draft.w)
        return _plain(draft, f"{draft.w}.transpose(-1, -2)", draft.v)

    return Products(
        (*lead, "n", "d"), (*lead, "m", "d"), (*lead, "m", "e"), (*lead, "m", "n"),
        (*lead, *("en" if flip else "ne")), lambda draft: _plain(draft, draft.k, f"{draft.q}.mT"),
        second,
    )  # fmt: skip


def einsum(draft: Draft) -> Products:
    lead = draft.pick("bh", "bh", "bh", "b", "bgh")
    drop = lambda: lead.replace(draft.random.choice(lead), "") if draft.coin(0.3) else lead
    letters = [drop(), lead, drop()]
    if draft.coin():
        letters[:2] = letters[1::-1]
    q, k, v = (
        draft.shuffled(x + tail) if draft.coin() else tuple(x + tail)
        for x, tail in zip(letters, ("nd", "md", "me"))
    )
    scores = tuple(f"{lead}nm")
    if not draft.hostile and draft.coin(0.4):
        scores = draft.shuffled(scores)
    output = draft.shuffled(f"{lead}ne") if draft.coin(0.7) else tuple(f"{lead}ne")

    def product(left: tuple[Dims, str], right: tuple[Dims, str], result: Dims) -> Text:
        swapped, gap = draft.coin(0.2), draft.pick("", " ")

        def text(draft: Draft) -> str:
            (one, x), (other, y) = (right, left) if swapped else (left, right)
            said = f"{gap.join(one)}, {gap.join(other)} -> {gap.join(result)}"
            return f'torch.einsum("{said}", {getattr(draft, x)}, {getattr(draft, y)})'

        return text

    first = product((q, "q"), (k, "k"), scores)
    return Products(q, k, v, scores, output, first, product((scores, "w"), (v, "v"), output))


def folded(draft: Draft) -> Products:
    """Heads folded into the batch around `bmm`; the scores stay folded or are unfolded."""
    unfold = draft.coin(0.6)

    def fold(x: str, rows: str, columns: str) -> str:
        return draft.pick(
            f"{x}.reshape(b * h, {rows}, {columns})",
            f"{x}.flatten(0, 1)",
            f"{x}.reshape(-1, {rows}, {columns})",
        )

    def first(draft: Draft) -> str:
        text = f"torch.bmm({fold(draft.q, 'n', 'd')}, {fold(draft.k, 'm', 'd')}.transpose(1, 2))"
        return f"{text}.view(b, h, n, m)" if unfold else text

    def second(draft: Draft) -> str:
        left = fold(draft.w, "n", "m") if unfold else draft.w
        return f"torch.bmm({left}, {fold(draft.v, 'm', 'e')}).view(b, h, n, e)"

    scores = ("b", "h", "n", "m") if unfold else ("b*h", "n", "m")
    return Products(
        ("b", "h", "n", "d"), ("b", "h", "m", "d"), ("b", "h", "m", "e"), scores,
        ("b", "h", "n", "e"), first, second,
    )  # fmt: skip


def baddbmm(draft: Draft) -> Products:
    lead = ("b",) if draft.hostile else draft.pick(("b",), ("b*h",))
    added = draft.pick((*lead, "n", "m"), ("1", "n", "m"), ("n", "m"), ("m",), ("1", "1", "1"))
    scaled = draft.pick("", ", beta=0.5, alpha=0.25", ", alpha=0.5", ", beta=2")
    text = draft.pick("torch.baddbmm({a}, {q}, {k}.mT", "{a}.baddbmm({q}, {k}.mT") + scaled + ")"

    def first(draft: Draft) -> str:
        # Where it asks for a gradient, and neither query nor key does, the judge refuses a rewrite
        # that is right: it takes the sum for the scores.
        all_train = not draft.hostile and draft.fact("training") == "all"
        name = draft.operand("a", added, grad=all_train)
        return text.format(a=name, q=draft.q, k=draft.k)

    return Products(
        (*lead, "n", "d"), (*lead, "m", "d"), (*lead, "m", "e"), (*lead, "n", "m"),
        (*lead, "n", "e"), first, _spelled("second", lead),
    )  # fmt: skip


# Families whose scores are [..., n, m], as hostilities want them; then all others.
FAMILIES = {f.__name__: f for f in (heads, batch, leads, bnhd, gqa, groups, einsum, baddbmm)}
OTHERS = {f.__name__: f for f in (stored, mirrored, folded)}
# Those that take their products from the tables of spellings.
SPELLED = ("heads", "batch", "gqa", "bnhd")
SHARES = {"heads": 3, "batch": 2, "leads": 2, "einsum": 3}


def family_of(draft: Draft) -> Products:
    """The family that was settled, or one of the table."""
    if draft.settled.get("first") or draft.settled.get("second"):
        names = list(SPELLED)
    else:
        names = [*FAMILIES, *([] if draft.hostile else OTHERS)]
    drawn = draft.random.choices(names, [SHARES.get(name, 1) for name in names])[0]
    return {**FAMILIES, **OTHERS}[draft.fact("family", drawn)](draft)


def restored(draft: Draft, wanted: Dims) -> str:
    """The weights with the dims that the second product needs, whatever reshapes came between."""
    name, dims = draft.w, draft.dims
    for axis, dim in enumerate(dims):
        if "*" in dim and dim not in wanted:
            left, right = dim.split("*")
            name = f"{name}.unflatten({axis}, ({left}, {right}))"
            dims = (*dims[:axis], left, right, *dims[axis + 1 :])
            break
    draft.dims = wanted
    return permuted_text(draft, name, dims, wanted)
