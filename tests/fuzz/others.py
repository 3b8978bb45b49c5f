"""Whole programs that look like the operator and are not, or that are it in the letter only.

decoy      = linear attention | library softmax attention | channel attention with softmax |
             additive attention | distance attention | one product alone | heads summed away
refusable  = a two-layer network with 2-D weights | channel attention | attention of k on q |
             a product over the keys that mixes nothing
"""

from tests.fuzz.activations import ACTIVATIONS
from tests.fuzz.draft import DECOY, REFUSABLE, Draft
from tests.fuzz.operands import make_view


def _qkv(draft: Draft, q: str, k: str, v: str) -> dict[str, str]:
    return {x: make_view(draft, x, spec.split()) for x, spec in (("q", q), ("k", k), ("v", v))}


def _act(draft: Draft, text: str) -> str:
    return draft.pick(ACTIVATIONS)[1].format(s=draft.let("s", text))


def whole_decoy(draft: Draft) -> str:
    """A program with nothing to rewrite; its result."""
    names = _qkv(draft, "b h n d", "b h m d", "b h m e")
    label, template = draft.pick(WHOLE_DECOYS)
    draft.feature(label, DECOY)
    return draft.let("o", template.format(**names))


WHOLE_DECOYS = [
    ("linear", "{q} @ ({k}.mT @ {v})"),
    ("linear", "(F.elu({q}) + 1) @ ((F.elu({k}) + 1).transpose(-2, -1) @ {v})"),
    (
        "linear",
        'torch.einsum("bhnd,bhde->bhne", {q}, '
        'torch.einsum("bhmd,bhme->bhde", {k}.softmax(-1), {v}))',
    ),
    ("library", "F.scaled_dot_product_attention({q}, {k}, {v})"),
    ("channels", "({q}.mT @ {q}).softmax(-1) @ {q}.mT"),
    ("additive", "(torch.tanh({q}.unsqueeze(3) + {k}.unsqueeze(2)).sum(-1)) @ {v}"),
    ("additive", "({q}.unsqueeze(3) * {k}.unsqueeze(2)).sum(-1).relu() @ {v}"),
    (
        "distance",
        "torch.exp(-0.1 * ({q}.unsqueeze(3) - {k}.unsqueeze(2)).square().sum(-1)) @ {v}",
    ),
    ("one product", "F.silu({q} @ {k}.mT).sum(-1, keepdim=True) * {q}"),
    ("heads summed", "F.relu({q} @ {k}.mT).sum(1) @ {v}.mean(1)"),
    ("averaged", "F.silu({q} @ {k}.mT).mean(-1, keepdim=True) * {v}.mean(2, keepdim=True)"),
    ("diagonal", "F.silu(({q} @ {q}.mT).diagonal(dim1=-2, dim2=-1)).unsqueeze(-1) * {q}"),
]


def whole_refusable(draft: Draft) -> str:
    """A program that may be taken for the operator, if its meaning is kept; its result."""
    return draft.pick([_network, _channels, _backwards, _sliced_keys, _one_row, _spread])(draft)


def _network(draft: Draft) -> str:
    draft.feature("2-D weights", REFUSABLE)
    lead = draft.pick(["", "b ", "b h "])
    x = make_view(draft, "x", f"{lead}n d".split())
    first, second = draft.operand("w", "m d"), draft.operand("w", "e m")
    if draft.chance(0.5):
        return draft.let("o", f"F.linear({_act(draft, f'F.linear({x}, {first})')}, {second})")
    return draft.let("o", f"({_act(draft, f'{x} @ {first}.t()')}) @ {second}.t()")


def _channels(draft: Draft) -> str:
    draft.feature("channels", REFUSABLE)
    names = _qkv(draft, "b h n d", "b h n e", "b h n e")
    return draft.let("o", f"({_act(draft, '{q}.mT @ {k}'.format(**names))}) @ {names['v']}.mT")


def _backwards(draft: Draft) -> str:
    draft.feature("k attends to q", REFUSABLE)
    names = _qkv(draft, "b h n d", "b h m d", "b h n e")
    weights = draft.let("p", _act(draft, "{q} @ {k}.mT".format(**names)))
    return draft.let("o", f"{weights}.mT @ {names['v']}")


def _sliced_keys(draft: Draft) -> str:
    draft.feature("keys cut off", REFUSABLE)
    names = _qkv(draft, "b h n d", "b h m d", "b h m e")
    weights = draft.let("p", _act(draft, "{q} @ {k}.mT".format(**names)))
    return draft.let("o", f"{weights}[..., 1:] @ {names['v']}[..., 1:, :]")


def _one_row(draft: Draft) -> str:
    draft.feature("one row", REFUSABLE)
    q_rows, k_rows = draft.pick([("1", "m"), ("n", "1"), ("1", "1")])
    names = _qkv(draft, f"b h {q_rows} d", f"b h {k_rows} d", f"b h {k_rows} e")
    return draft.let("o", f"({_act(draft, '{q} @ {k}.mT'.format(**names))}) @ {names['v']}")


def _spread(draft: Draft) -> str:
    """A bias with more heads than the scores have: it broadcasts them up."""
    draft.feature("spread by a bias", REFUSABLE)
    names = _qkv(draft, "b 1 n d", "b 1 m d", "b h m e")
    bias = draft.operand("a", "h n m")
    return draft.let(
        "o", f"({_act(draft, '{q} @ {k}.mT + '.format(**names) + bias)}) @ {names['v']}"
    )
