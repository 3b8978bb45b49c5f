"""What makes a program refusable (it must stay right) or a decoy (it must stay as it is).

refusable  = the scores escape | an operand is changed in between | the gradient is cut |
             randomness | rounding | a fill of -inf | a slice of keys | user code in between
decoy      = a step that mixes scores of different positions: normalisation, accumulation,
             reordering, mixing of heads, a reshape that scrambles
"""

from collections.abc import Callable

import torch

from tests.fuzz.draft import DECOY, REFUSABLE, Draft, Scores
from tests.fuzz.steps import assign, broadcast

Twist = Callable[[Draft, Scores], Scores]


def escapes(draft: Draft, scores: Scores) -> Scores:
    draft.feature("escapes", REFUSABLE)
    text = draft.pick(["{s}", "{s}.sum()", "{s}.mean(-1)", "{s}.detach()", "{s}[..., :1]"])
    draft.extra.append(draft.let("seen", text.format(s=scores.name)))
    return assign(draft, scores, f"{scores.name} * 1.0")


def used_twice(draft: Draft, scores: Scores) -> Scores:
    draft.feature("used twice", REFUSABLE)
    other = draft.operand("v", f"{draft.pick(['n', 'm'])} e")
    wanted = draft.specs[other][0]
    if scores.dims[-1] == wanted:
        draft.extra.append(draft.let("o", f"{scores.name} @ {other}"))
    else:
        draft.extra.append(draft.let("o", f"{scores.name}.exp().sum(-1)"))
    return assign(draft, scores, f"{scores.name} + 0.0")


def changes_operand(draft: Draft, scores: Scores) -> Scores:
    """Changes in place what the first or the second product reads, or a view of it.

    Only copies are changed: the caller's tensors are leaves. Without gradients, for autograd would
    refuse to differentiate a product whose operand has changed.
    """
    draft.feature("operand changed", REFUSABLE)
    draft.training = False
    names = [line.split(" = ")[0] for line in draft.lines if line[0] in "qkv" and " = " in line]
    target = draft.pick(names)
    draft.emit(draft.pick(CHANGES).format(x=target))
    return scores


CHANGES = ["{x}.mul_(2.0)", "{x}[..., :1] = 0.5", "{x}.select(-1, 0).add_(1.0)", "{x} += 1.0"]


def changes_bias(draft: Draft, scores: Scores) -> Scores:
    """A bias or mask is used, then changed: the later value must not be read."""
    draft.feature("aux changed", REFUSABLE)
    draft.training = False
    aux = draft.let("a", f"{broadcast(draft, scores, 'float')}.clone()")
    scores = assign(draft, scores, f"{scores.name} {draft.pick('+*')} {aux}")
    draft.emit(draft.pick([f"{aux}.mul_(3.0)", f"{aux}.zero_()", f"{aux} -= 1.0"]))
    return scores


def changes_part(draft: Draft, scores: Scores) -> Scores:
    """In-place through a view of the scores: no edge of the graph shows it."""
    draft.feature("scores changed by a view", REFUSABLE)
    fresh = assign(draft, scores, f"{scores.name}.contiguous() * 1.0")
    draft.emit(draft.pick(PARTS).format(s=fresh.name))
    return fresh


PARTS = [
    "{s}[..., 0] = 0.0",
    "{s}[..., :1].mul_(0.5)",
    "{s}.view(-1).mul_(2.0)",
    "{s}.select(-1, 0).zero_()",
    "{s}.transpose(-1, -2).add_(0.25)",
    "{s}[{s} < 0] = 0.1",
]


def cuts_gradient(draft: Draft, scores: Scores) -> Scores:
    draft.feature("gradient cut", REFUSABLE)
    if draft.chance(0.3):
        fresh = draft.let("s", scores.name)
        draft.emit("with torch.no_grad():")
        draft.emit(f"    {fresh} = {scores.name} * 2.0")
        return Scores(fresh, scores.dims)
    return assign(draft, scores, draft.pick(CUTS).format(s=scores.name))


CUTS = [
    "{s}.detach()",
    "{s} * torch.sigmoid({s}).detach()",
    "{s} + ({s}.relu() - {s}).detach()",
    "torch.clamp({s}.detach(), -1.0, 1.0)",
    "{s}.data",
]


def random_noise(draft: Draft, scores: Scores) -> Scores:
    draft.feature("randomness", REFUSABLE)
    text = draft.pick(
        [
            "F.dropout({s}, 0.25)",
            "{s} + torch.rand_like({s})",
            "{s} * torch.bernoulli({s}.sigmoid())",
        ]
    )
    return assign(draft, scores, text.format(s=scores.name))


def rounds(draft: Draft, scores: Scores) -> Scores:
    draft.feature("rounding", REFUSABLE)
    text = draft.pick(ROUNDINGS)
    if "bfloat16" in text or "half" in text:
        # Autograd rounds the gradient too, on its way back through the cast; that may be left out.
        draft.gradient_relative = 4 * torch.finfo(torch.bfloat16).eps
    return assign(draft, scores, text.format(s=f"(3.0 * {scores.name})"))


ROUNDINGS = [
    "{s}.round()",
    "{s}.floor() + {s}",
    "{s}.to(torch.int32).to({s}.dtype)",
    "{s}.long() * 0.5 * {s}",
    "{s}.to(torch.bfloat16).to({s}.dtype)",
    "{s}.half().to({s}.dtype)",
    "{s}.trunc()",
    "torch.sign({s})",
]


def fills(draft: Draft, scores: Scores) -> Scores:
    draft.feature("fill", REFUSABLE)
    # Whether a sum of several of the least number is infinite, NaN or neither is for its order to
    # say, in eager too. The square of this one overflows; a sum of as many as there are does not.
    least = f"torch.finfo({scores.name}.dtype).min * 2.0**-20"
    fill = draft.pick(['float("-inf")', "-1e9", least, 'float("inf")'])
    return assign(
        draft, scores, f"{scores.name}.masked_fill({broadcast(draft, scores, 'bool')}, {fill})"
    )


def user_function(draft: Draft, scores: Scores) -> Scores:
    draft.feature("autograd.Function", REFUSABLE)
    draft.prelude = STRAIGHT_THROUGH
    return assign(draft, scores, f"StraightThrough.apply({scores.name})")


STRAIGHT_THROUGH = """
class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clamp(-1.0, 1.0)

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5
"""

REFUSABLES: list[Twist] = [
    escapes,
    escapes,
    used_twice,
    changes_operand,
    changes_operand,
    changes_bias,
    changes_part,
    cuts_gradient,
    random_noise,
    rounds,
    fills,
    user_function,
]


def mixes(draft: Draft, scores: Scores) -> Scores:
    """A step that lets scores of several positions meet, along an axis of more than one."""
    axis = draft.pick([i for i, dim in enumerate(scores.dims) if draft.sizes.get(dim, 2) > 1])
    name, template = draft.pick(MIXERS)
    draft.feature(f"mixes:{name}", DECOY)
    if draft.chance(0.7) and draft.sizes.get(scores.dims[-1], 2) > 1:
        axis = len(scores.dims) - 1
    return assign(draft, scores, f"({template.format(s=scores.name, x=axis)}) * 1.0")


MIXERS = [
    ("softmax", "F.softmax({s}, dim={x})"),
    ("softmax", "torch.softmax({s}, {x})"),
    ("softmax", "{s}.float().softmax(dim={x}).to({s}.dtype)"),
    ("softmax", "{s}.exp() / {s}.exp().sum({x}, keepdim=True)"),
    ("softmax", "({s} - torch.logsumexp({s}, {x}, keepdim=True)).exp()"),
    ("log_softmax", "F.log_softmax({s}, dim={x})"),
    ("softmin", "F.softmin({s}, dim={x})"),
    ("row sum", "{s} / ({s}.abs().sum({x}, keepdim=True) + 1e-3)"),
    ("row sum", "F.relu({s}) / (F.relu({s}).sum(dim={x}, keepdim=True) + 0.1)"),
    ("row norm", "F.normalize({s}, dim={x})"),
    ("row norm", "{s} * torch.rsqrt({s}.square().mean({x}, keepdim=True) + 0.1)"),
    ("centred", "{s} - {s}.mean({x}, keepdim=True)"),
    ("centred", "{s} - {s}.amax({x}, keepdim=True)"),
    ("standardised", "({s} - {s}.mean({x}, keepdim=True)) / ({s}.std({x}, keepdim=True) + 1.0)"),
    ("layer_norm", "F.layer_norm({s}, {s}.shape[-1:])"),
    ("total", "{s} + {s}.sum()"),
    ("total", "{s} / ({s}.norm() + 1.0)"),
    ("cumsum", "{s}.cumsum({x})"),
    ("cumsum", "torch.cumsum({s}.sigmoid(), dim={x})"),
    ("cumprod", "torch.cumprod({s}.sigmoid(), dim={x})"),
    ("flip", "{s}.flip({x})"),
    ("flip", "{s} + torch.flip({s}, [{x}])"),
    ("roll", "torch.roll({s}, 1, {x})"),
    ("roll", "{s} * {s}.roll(shifts=-1, dims={x})"),
    ("sort", "{s}.sort(dim={x}).values"),
    ("best", "{s} * ({s} == {s}.amax({x}, keepdim=True))"),
    ("best", "torch.where({s} >= {s}.topk(1, dim={x}).values, {s}, 0.0)"),
    ("shift", "F.pad({s}[..., 1:], (0, 1)) + {s}"),
    ("gather", "{s}.index_select({x}, torch.arange({s}.shape[{x}] - 1, -1, -1))"),
    ("gather", "{s}[..., torch.arange({s}.shape[-1]).flip(0)]"),
    ("heads met", "{s}.sum({x}, keepdim=True).expand_as({s})"),
    ("heads met", "{s} + 0.5 * {s}.mean({x}, keepdim=True)"),
    ("max", "torch.maximum({s}, {s}.mean({x}, keepdim=True))"),
]


def scrambles(draft: Draft, scores: Scores) -> Scores:
    """`view(b, n, h, m)` where the dims are `b, h, n, m`: legal, and not what it looks like."""
    sizes = [draft.sizes.get(dim, 0) for dim in scores.dims]
    pairs = [i for i in range(len(sizes) - 1) if len({sizes[i], sizes[i + 1], 1, 0}) == 4]
    if not pairs or draft.dynamic:
        return mixes(draft, scores)
    draft.feature("scrambles", DECOY)
    at = draft.pick(pairs)
    shape = list(scores.dims)
    shape[at], shape[at + 1] = shape[at + 1], shape[at]
    text = f"{scores.name}.reshape({', '.join(shape)}).transpose({at}, {at + 1})"
    return assign(draft, scores, text)


def transposed_sum(draft: Draft, scores: Scores) -> Scores:
    """Scores plus their own transpose: two positions of one matrix meet."""
    if scores.dims[-2:] not in (("n", "m"), ("m", "n")) or draft.sizes["n"] != draft.sizes["m"]:
        return mixes(draft, scores)
    if draft.dynamic:
        return mixes(draft, scores)
    draft.feature("mixes:transpose", DECOY)
    return assign(
        draft, scores, f"{scores.name} {draft.pick('+*')} {scores.name}.transpose(-1, -2)"
    )


DECOYS: list[Twist] = [mixes, mixes, mixes, mixes, scrambles, transposed_sum]
