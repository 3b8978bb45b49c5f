"""The two products: `scores = q·k`, `output = weights·v`, in every spelling.

family  = matmul | mirrored | einsum | folded | grouped | baddbmm
matmul    `q @ k.mT`, `torch.matmul`, `bmm`; any leading dims; k and v may be shared by heads,
          q, k or v by the batch
mirrored  `k @ q.mT`, then `v.mT @ p` (or `p.mT @ v`): keys are the rows of the scores
einsum    any order of letters in every operand; operands may lack b or h
folded    b and h flattened into one dim around `bmm`
grouped   fewer heads in k and v: repeated, expanded, or with a group dim of their own
baddbmm   the bias goes in with the product, with alpha and beta
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.draft import Draft, Scores, permute_text
from tests.fuzz.operands import make_view


@dataclass(frozen=True)
class Products:
    """The scores after the first product, and `finish(scores) -> output` for the second.

    `wanted` are the dims that `finish` needs; `output` those of what it returns.
    """

    scores: Scores
    wanted: tuple[str, ...]
    output: tuple[str, ...]
    finish: Callable[[str], str]


LEADS = [("b", "h"), ("b", "h"), ("b", "h"), ("h", "b"), ("b",), ("b", "g", "h"), ("b*h",)]


def _shared(draft: Draft, lead: tuple[str, ...], probability: float = 0.15) -> tuple[str, ...]:
    """The leading dims of an operand that others may share: some of them become 1."""
    if not draft.chance(probability) or "b*h" in lead:
        return lead
    letter = draft.pick(lead)
    draft.feature(f"shared:{letter}")
    return tuple("1" if dim == letter else dim for dim in lead)


def _sharing(draft: Draft, lead: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Leading dims of q, k and v; between them q and k have every dim in full."""
    q, k, v = lead, lead, _shared(draft, lead)
    if draft.chance(0.5):
        q = _shared(draft, lead)
    else:
        k = _shared(draft, lead, 0.3)
    return q, k, v


def matmul(draft: Draft) -> Products:
    lead = draft.pick(LEADS)
    lead_q, lead_k, lead_v = _sharing(draft, lead)
    q = make_view(draft, "q", (*lead_q, "n", "d"))
    three = len(lead) == 1 and lead_q == lead_k == lead
    if draft.chance(0.2):
        k_t = make_view(draft, "k", (*lead_k, "d", "m"))
    else:
        k = make_view(draft, "k", (*lead_k, "m", "d"))
        last = len(lead)
        k_t = draft.pick(
            [f"{k}.mT", f"{k}.transpose(-2, -1)", f"{k}.transpose({last}, {last + 1})"]
        )
    v = make_view(draft, "v", (*lead_v, "m", "e"))
    scores = Scores(draft.let("s", _times(draft, q, k_t, three)), (*lead, "n", "m"))
    three = three and lead_v == lead

    def finish(weights: str) -> str:
        return draft.let("o", _times(draft, weights, v, three))

    return Products(scores, (*lead, "n", "m"), (*lead, "n", "e"), finish)


def _times(draft: Draft, left: str, right: str, three: bool) -> str:
    spellings = ["{0} @ {1}", "{0} @ {1}", "torch.matmul({0}, {1})", "{0}.matmul({1})"]
    if three:
        spellings += ["torch.bmm({0}, {1})", "{0}.bmm({1})"] * 2
    return draft.pick(spellings).format(left, right)


def mirrored(draft: Draft) -> Products:
    lead = draft.pick(LEADS)
    q = make_view(draft, "q", (*lead, "n", "d"))
    k = make_view(draft, "k", (*lead, "m", "d"))
    v = make_view(draft, "v", (*lead, "m", "e"))
    three = len(lead) == 1
    scores = Scores(draft.let("s", _times(draft, k, f"{q}.mT", three)), (*lead, "m", "n"))
    flip = draft.chance(0.6)

    def finish(weights: str) -> str:
        if flip:
            return draft.let("o", _times(draft, f"{v}.mT", weights, three))
        return draft.let("o", _times(draft, f"{weights}.transpose(-1, -2)", v, three))

    return Products(scores, (*lead, "m", "n"), (*lead, *("en" if flip else "ne")), finish)


def einsum(draft: Draft) -> Products:
    lead = draft.pick(["bh", "bh", "bh", "b", "bgh"])
    drop = lambda letters: letters.replace(draft.pick(lead), "") if draft.chance(0.3) else letters
    lead_q, lead_k = (drop(lead), lead) if draft.chance(0.5) else (lead, drop(lead))
    lead_v = drop(lead)
    q_dims, k_dims, v_dims = (
        draft.shuffled(f"{letters}{tail}") if draft.chance(0.5) else tuple(f"{letters}{tail}")
        for letters, tail in ((lead_q, "nd"), (lead_k, "md"), (lead_v, "me"))
    )
    q = make_view(draft, "q", q_dims)
    k = make_view(draft, "k", k_dims)
    v = make_view(draft, "v", v_dims)
    s_dims = tuple(f"{lead}nm") if draft.chance(0.6) else draft.shuffled(f"{lead}nm")
    o_dims = draft.shuffled(f"{lead}ne") if draft.chance(0.7) else tuple(f"{lead}ne")
    first, second = (q_dims, q), (k_dims, k)
    if draft.chance(0.2):
        first, second = second, first
    scores = Scores(draft.let("s", _einsum_text(draft, first, second, s_dims)), s_dims)

    def finish(weights: str) -> str:
        left, right = (s_dims, weights), (v_dims, v)
        if draft.chance(0.2):
            left, right = right, left
        return draft.let("o", _einsum_text(draft, left, right, o_dims))

    return Products(scores, s_dims, o_dims, finish)


def _einsum_text(draft: Draft, left: tuple, right: tuple, result: tuple[str, ...]) -> str:
    gap = draft.pick(["", " "])
    letters = [gap.join(dims) for dims in (left[0], right[0], result)]
    return f'torch.einsum("{letters[0]}, {letters[1]} -> {letters[2]}", {left[1]}, {right[1]})'


def folded(draft: Draft) -> Products:
    """Heads folded into the batch around `bmm`; the scores stay folded or are unfolded."""
    q = make_view(draft, "q", ("b", "h", "n", "d"))
    k = make_view(draft, "k", ("b", "h", "m", "d"))
    v = make_view(draft, "v", ("b", "h", "m", "e"))
    fold = lambda x, rows, columns: draft.pick(
        [
            f"{x}.reshape(b * h, {rows}, {columns})",
            f"{x}.flatten(0, 1)",
            f"{x}.reshape(-1, {rows}, {columns})",
        ]
    )
    name = draft.let("s", f"torch.bmm({fold(q, 'n', 'd')}, {fold(k, 'm', 'd')}.transpose(1, 2))")
    dims = ("b*h", "n", "m")
    if draft.chance(0.6):
        name = draft.let("s", f"{name}.view(b, h, n, m)")
        dims = ("b", "h", "n", "m")

    def finish(weights: str) -> str:
        left = weights if dims[0] == "b*h" else fold(weights, "n", "m")
        return draft.let("o", f"torch.bmm({left}, {fold(v, 'm', 'e')}).view(b, h, n, e)")

    return Products(Scores(name, dims), dims, ("b", "h", "n", "e"), finish)


def grouped(draft: Draft) -> Products:
    """`h` heads of keys and values, `h*g` heads of queries."""
    k = make_view(draft, "k", ("b", "h", "m", "d"))
    v = make_view(draft, "v", ("b", "h", "m", "e"))
    style = draft.pick(["interleave", "expand", "group dim", "einsum"])
    draft.feature(f"gqa:{style}")
    if style in ("group dim", "einsum"):
        q = make_view(draft, "q", ("b", "h", "g", "n", "d"))
        dims = ("b", "h", "g", "n", "m")
        if style == "einsum":
            name = draft.let("s", f'torch.einsum("bhgnd,bhmd->bhgnm", {q}, {k})')
            finish = lambda p: draft.let("o", f'torch.einsum("bhgnm,bhme->bhgne", {p}, {v})')
        else:
            name = draft.let("s", f"{q} @ {k}.unsqueeze(2).mT")
            finish = lambda p: draft.let("o", f"{p} @ {v}[:, :, None]")
        return Products(Scores(name, dims), dims, (*dims[:-1], "e"), finish)
    q = make_view(draft, "q", ("b", "h*g", "n", "d"))
    name = draft.let("s", f"{q} @ {_repeated(style, k, 'd')}.transpose(2, 3)")
    dims = ("b", "h*g", "n", "m")

    def finish(weights: str) -> str:
        return draft.let("o", f"{weights} @ {_repeated(style, v, 'e')}")

    return Products(Scores(name, dims), dims, ("b", "h*g", "n", "e"), finish)


def _repeated(style: str, x: str, width: str) -> str:
    """Each of the h heads g times: [b, h, m, width] -> [b, h*g, m, width]."""
    if style == "interleave":
        return f"{x}.repeat_interleave(g, dim=1)"
    return f"{x}[:, :, None].expand(b, h, g, m, {width}).reshape(b, h * g, m, {width})"


def baddbmm(draft: Draft) -> Products:
    lead = draft.pick([("b",), ("b*h",)])
    q, k, v = (make_view(draft, x, (*lead, *t)) for x, t in (("q", "nd"), ("k", "md"), ("v", "me")))
    added = draft.operand(
        "a", draft.pick([" ".join((*lead, "n", "m")), "1 n m", "n m", "m", "1 1 1"])
    )
    scaled = draft.pick(["", ", beta=0.5, alpha=0.25", ", alpha=0.5", ", beta=2"])
    call = draft.pick([f"torch.baddbmm({added}, {q}, {k}.mT", f"{added}.baddbmm({q}, {k}.mT"])
    scores = Scores(draft.let("s", f"{call}{scaled})"), (*lead, "n", "m"))

    def finish(weights: str) -> str:
        return draft.let("o", _times(draft, weights, v, True))

    return Products(scores, (*lead, "n", "m"), (*lead, "n", "e"), finish)


FAMILIES: list[Callable[[Draft], Products]] = [
    matmul,
    matmul,
    matmul,
    einsum,
    einsum,
    einsum,
    mirrored,
    folded,
    grouped,
    baddbmm,
]


def restore(draft: Draft, scores: Scores, wanted: tuple[str, ...]) -> str:
    """The weights with the dims that the second product needs, whatever reshapes came between."""
    name, dims = scores.name, scores.dims
    for axis, dim in enumerate(dims):
        if "*" in dim and dim not in wanted:
            left, right = dim.split("*")
            name = draft.let("s", f"{name}.unflatten({axis}, ({left}, {right}))")
            dims = (*dims[:axis], left, right, *dims[axis + 1 :])
            break
    if dims == wanted:
        return name
    return draft.let("s", permute_text(draft, name, dims, wanted))
