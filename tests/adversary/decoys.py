"""Programs that look like the operator and are not, or that are it in the letter only: whole ones,
and a step that mixes scores of different positions.

decoy   = linear attention | library softmax attention | channel attention with softmax |
          additive attention | distance attention | one product alone | heads summed away
hazard  = a two-layer network with 2-D weights | channel attention | attention of k on q |
          a product over the keys that mixes nothing
"""

import itertools

from .draft import Draft
from .sizes import draw_sizes
from .spellings import ACTIVATIONS, FURTHER
from .views import make_view, shape_text

QKV = {"q": "b h n d", "k": "b h m d", "v": "b h m e"}
WEIGHTS = {"k": "m d", "v": "e m"}  # of a network of two layers
DECOYS = {
    "linear": "{q} @ ({k}.mT @ {v})",
    "linear of elu": "(F.elu({q}) + 1) @ ((F.elu({k}) + 1).transpose(-2, -1) @ {v})",
    "linear by einsum": 'torch.einsum("bhnd,bhde->bhne", {q}, '
    'torch.einsum("bhmd,bhme->bhde", {k}.softmax(-1), {v}))',
    "library": "F.scaled_dot_product_attention({q}, {k}, {v})",
    "channels": "({q}.mT @ {q}).softmax(-1) @ {q}.mT",
    "additive": "(torch.tanh({q}.unsqueeze(3) + {k}.unsqueeze(2)).sum(-1)) @ {v}",
    "multiplicative": "({q}.unsqueeze(3) * {k}.unsqueeze(2)).sum(-1).relu() @ {v}",
    "distance": "torch.exp(-0.1 * ({q}.unsqueeze(3) - {k}.unsqueeze(2)).square().sum(-1)) @ {v}",
    "one product": "F.silu({q} @ {k}.mT).sum(-1, keepdim=True) * {q}",
    "heads summed": "F.relu({q} @ {k}.mT).sum(1) @ {v}.mean(1)",
    "averaged": "F.silu({q} @ {k}.mT).mean(-1, keepdim=True) * {v}.mean(2, keepdim=True)",
    "diagonal": "F.silu(({q} @ {q}.mT).diagonal(dim1=-2, dim2=-1)).unsqueeze(-1) * {q}",
}
# Name: dims of the operands, what the activation is applied to, and the program of its result {w}.
LETTERS = {
    "two layers": (WEIGHTS | {"q": "b h n d"}, "F.linear({q}, {k})", "F.linear({w}, {v})"),
    "two layers without a batch": (WEIGHTS | {"q": "n d"}, "{q} @ {k}.t()", "{w} @ {v}.t()"),
    "channels as they are": (dict.fromkeys("qkv", "b h n e"), "{q}.mT @ {k}", "{w} @ {v}.mT"),
    "k attends to q": (QKV | {"v": "b h n e"}, "{q} @ {k}.mT", "{w}.mT @ {v}"),
    "keys cut off": (QKV, "{q} @ {k}.mT", "{w}[..., 1:] @ {v}[..., 1:, :]"),
    "one row": (QKV | {"q": "b h 1 d"}, "{q} @ {k}.mT", "{w} @ {v}"),
    "one key": (QKV | {"k": "b h 1 d", "v": "b h 1 e"}, "{q} @ {k}.mT", "{w} @ {v}"),
    "spread by a bias": (QKV | {"q": "b 1 n d", "k": "b 1 m d"}, "{q} @ {k}.mT + {a}", "{w} @ {v}"),
}  # fmt: skip


def write_whole(draft: Draft) -> None:
    draw_sizes(draft)
    name = draft.in_turn(draft.settled["whole"])
    draft.note(f"whole {name}")
    dims, scores, text = LETTERS.get(name, (QKV, "", DECOYS.get(name, "")))
    for x in "qkv":
        make_view(draft, x, dims[x].split())
    names = {"q": draft.q, "k": draft.k, "v": draft.v}
    if scores:
        bias = draft.operand("a", "h n m") if "{a}" in scores else ""
        act = draft.random.choice(list(ACTIVATIONS | FURTHER))
        draft.note(f"activation {act}")
        s = draft.let("s", scores.format(a=bias, **names))
        names["w"] = draft.let("w", act.format(s=s))
    draft.emit(f"out = {text.format(**names)}")
    draft.o = "out"


def mixes(draft: Draft, stage: str) -> None:
    """A step that lets scores of several positions meet, along an axis of more than one."""
    x, dims = draft.subject(stage), draft.dims
    sizes = [draft.size(dim) for dim in dims]
    turned = sorted(dims[-2:]) == ["m", "n"] and sizes[-2] == sizes[-1] and not draft.further
    # Where one size divides the other, digits change places and no scores meet.
    pairs = [(min(x), max(x)) for x in itertools.pairwise(sizes)]
    scrambled = [i for i, (less, more) in enumerate(pairs) if more % less]
    if draft.coin(0.15) and scrambled and not draft.further:
        # `view(b, n, h, m)` where the dims are `b, h, n, m`: legal, and not what it looks like.
        at = draft.random.choice(scrambled)
        swapped = (*dims[:at], dims[at + 1], dims[at], *dims[at + 2 :])
        draft.note("mixes by a scrambling view")
        shape = shape_text(swapped).replace("*", " * ")
        draft.assign(stage, f"{x}.reshape({shape}).transpose({at}, {at + 1})")
    elif draft.coin(0.15) and turned:
        draft.note("mixes with its transpose")
        draft.assign(stage, f"{x} {draft.pick('+', '*')} {x}.transpose(-1, -2)")
    else:
        last = len(dims) - 1
        axes = [i for i, size in enumerate(sizes) if size > 1] or [last]
        axis = last if draft.coin(0.7) and last in axes else draft.random.choice(axes)
        # Those before the activation begin at the other end.
        text = draft.in_turn(MIXERS[::-1] if stage == "middle" else MIXERS)
        draft.note(f"mixes {text}")
        draft.assign(stage, f"({text.format(s=x, x=axis)}) * 1.0")


MIXERS = (
    "F.softmax({s}, dim={x})",
    "torch.softmax({s}, {x})",
    "{s}.float().softmax(dim={x}).to({s}.dtype)",
    "({s} - torch.logsumexp({s}, {x}, keepdim=True)).exp()",
    "F.log_softmax({s}, dim={x})",
    "F.softmin({s}, dim={x})",
    "{s} / {s}.detach().abs().amax().clamp(min=0.1)",
    "F.normalize({s}, dim={x})",
    "{s} * torch.rsqrt({s}.square().mean({x}, keepdim=True) + 0.1)",
    "{s} - {s}.mean({x}, keepdim=True)",
    "{s} - {s}.amax({x}, keepdim=True)",
    "({s} - {s}.mean({x}, keepdim=True)) / ({s}.std({x}, keepdim=True) + 1.0)",
    "F.layer_norm({s}, {s}.shape[-1:])",
    "{s} + {s}.sum()",
    "{s} / ({s}.norm() + 1.0)",
    "{s}.cumsum({x})",
    "torch.cumsum({s}.sigmoid(), dim={x})",
    "torch.cumprod({s}.sigmoid(), dim={x})",
    "{s}.flip({x})",
    "{s} + torch.flip({s}, [{x}])",
    "torch.roll({s}, 1, {x})",
    "{s} * {s}.roll(shifts=-1, dims={x})",
    "{s}.sort(dim={x}).values",
    "{s} * ({s} == {s}.amax({x}, keepdim=True))",
    "torch.where({s} >= {s}.topk(1, dim={x}).values, {s}, 0.0)",
    "F.pad({s}[..., 1:], (0, 1)) + {s}",
    "{s}.index_select({x}, torch.arange({s}.shape[{x}] - 1, -1, -1))",
    "{s}[..., torch.arange({s}.shape[-1]).flip(0)]",
    "{s}.sum({x}, keepdim=True).expand_as({s})",
    "{s} + 0.5 * {s}.mean({x}, keepdim=True)",
    "torch.maximum({s}, {s}.mean({x}, keepdim=True))",
)
