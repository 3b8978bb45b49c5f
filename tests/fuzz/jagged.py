"""Random jagged attentions, labelled by construction: `python -m tests.fuzz --family jagged`.

A program pads its values, attends, and unpads the rows (or not). Which sides can run on the values
alone follows from what was drawn: `sides` of the program. Nothing here knows how they are found.

    padding    fbgemm, if it is installed (packet, keywords, overload; exact results by index
               arithmetic, as it has no doubles), ATen in inference, ATen in an autograd.Function;
               on kernels the last or the package's own
    offsets    given, or running sums of the lengths in three spellings; int32 and int64; one tensor
               or several
    sides      self-attention, short dense keys, shared seeds, new queries; padded outputs; operands
               padded with ones, by other offsets, or changed after the padding
    lengths    zeros and ones among them; a padded length above, at and (fbgemm) below the longest
"""

import importlib.util
import random
from dataclasses import dataclass, field

from tests.fuzz.draft import FUSABLE, REFUSABLE, Program

HAS_FBGEMM = importlib.util.find_spec("fbgemm_gpu") is not None
FBGEMM = """
def pad(values, offsets, n, fill=0.0):
    flat = values.reshape(values.shape[0], -1)
    if flat.dtype == torch.float64:
        return slow_pad(flat, offsets, n, fill).view(-1, n, *values.shape[1:])
    return {call}.view(-1, n, *values.shape[1:])


def unpad(padded, offsets, length):
    flat = padded.flatten(2) if padded.dim() > 3 else padded
    if flat.dtype == torch.float64:
        return slow_unpad(flat, offsets, length).view(length, *padded.shape[2:])
    return torch.ops.fbgemm.dense_to_jagged(flat, [offsets], length)[0].view(
        length, *padded.shape[2:]
    )
"""
FBGEMM_CALLS = (
    "torch.ops.fbgemm.jagged_to_padded_dense(flat, [offsets], [n], fill)",
    "torch.ops.fbgemm.jagged_to_padded_dense("
    "values=flat, offsets=[offsets], max_lengths=[n], padding_value=fill)",
    "torch.ops.fbgemm.jagged_to_padded_dense.default(flat, [offsets], [n], fill)",
)
ATEN = """
def pad(values, offsets, n, fill=0.0):
    flat = values.reshape(values.shape[0], -1)
    made = torch.ops.aten._jagged_to_padded_dense_forward(flat, [offsets], [n], fill)
    return made.reshape(-1, n, *values.shape[1:])


def unpad(padded, offsets, length):
    flat = padded.reshape(*padded.shape[:2], -1)
    made = torch.ops.aten._padded_dense_to_jagged_forward(flat, [offsets], length)
    return made.reshape(length, *padded.shape[2:])
"""
WRAPPED = """
from tests.jagged import Pad, PadOnes, Unpad


def pad(values, offsets, n, fill=0.0):
    call = PadOnes if fill else Pad
    flat = call.apply(values.reshape(values.shape[0], -1), offsets, n)
    return flat.reshape(-1, n, *values.shape[1:])


def unpad(padded, offsets, length):
    flat = Unpad.apply(padded.reshape(*padded.shape[:2], -1), offsets, length)
    return flat.reshape(length, *padded.shape[2:])
"""
GDPA = """
def pad(values, offsets, n, fill=0.0):
    made = torch.ops.gdpa.jagged_to_padded_dense(values, offsets, n)
    if fill:
        past = torch.arange(n)[None, :] >= offsets.diff()[:, None]
        made = made.masked_fill(past.reshape(*past.shape, *[1] * (made.dim() - 2)), fill)
    return made


def unpad(padded, offsets, length):
    return torch.ops.gdpa.dense_to_jagged(padded, offsets, length)
"""
SLOW = """
def slow_rows(offsets, count):
    row = torch.arange(count)
    sequence = torch.searchsorted(offsets[1:].contiguous(), row.to(offsets.dtype), right=True)
    sequence = sequence.clamp(max=offsets.shape[0] - 2)
    return sequence, row - offsets[sequence]


def slow_pad(flat, offsets, n, fill):
    sequence, place = slow_rows(offsets, flat.shape[0])
    keep = (place < n) & (torch.arange(flat.shape[0]) < offsets[-1])
    made = flat.new_full((offsets.shape[0] - 1, n, flat.shape[1]), fill)
    return made.index_put((sequence[keep], place[keep]), flat[keep])


def slow_unpad(padded, offsets, length):
    sequence, place = slow_rows(offsets, length)
    keep = (place < padded.shape[1]) & (torch.arange(length) < offsets[-1])
    found = padded[sequence, place.clamp(max=padded.shape[1] - 1)]
    return torch.where(keep[:, None], found, 0.0)
"""
ACTIVATIONS = (
    "F.silu({s})", "torch.relu({s})", "F.gelu({s})", "F.gelu({s}, approximate='tanh')",
    "torch.sigmoid({s})", "torch.tanh({s})", "F.relu({s}).square()", "{s} * torch.sigmoid({s})",
    "F.softplus({s})", "F.hardswish({s})",
)  # fmt: skip
OFFSETS = (
    "torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(lengths, 0)])",
    "F.pad(lengths.cumsum(0), (1, 0))",
    "torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])",
)


@dataclass
class Sketch:
    """A program in the making."""

    rng: random.Random
    specs: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    features: list[str] = field(default_factory=list)
    sides: set[str] = field(default_factory=lambda: {"q", "k"})
    other: set[str] = field(default_factory=set)  # what is padded or unpadded by other offsets

    def pick(self, options):
        return self.rng.choice(options)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def spoil(self, feature: str, side: str) -> None:
        """A feature because of which a side has to stay padded."""
        self.features.append(feature)
        self.sides.discard(side)


def generate_jagged(seed: int, padding: str = "") -> Program:
    """The program of a seed. padding: by which functions, whatever the seed would draw."""
    draw = Sketch(random.Random(f"jagged {seed}"))
    family = draw.pick(["fbgemm", "fbgemm", "fbgemm", "aten", "wrapped"])
    family = padding or family
    if family == "fbgemm" and not HAS_FBGEMM:
        family = "wrapped"
    draw.features.append(f"padding:{family}")
    kind = draw.pick(["self", "self", "self", "short keys", "seeds", "new queries"])
    draw.features.append(f"kind:{kind}")
    heads = draw.pick(["einsum", "einsum", "first", "folded", "none"])
    if kind == "seeds" and heads != "first":
        heads = "einsum"  # a product with a matrix of two dims is no attention
    draw.features.append(f"heads:{heads}")
    _operands(draw, kind, heads)
    _offsets(draw, family)
    _padding(draw, kind, family)
    _attention(draw, kind, heads)
    result = _output(draw, kind)
    for pair, side in (({"q", "out"}, "q"), ({"k", "v"}, "k")):
        if len(pair & draw.other) == 1:
            draw.spoil(f"two offsets:{side}", side)
    dtype, training = {
        "fbgemm": (draw.pick(["float32", "float32", "bfloat16", "float16"]), draw.chance(0.7)),
        "aten": (draw.pick(["float64", "float32"]), False),
        "wrapped": ("float64", True),
        "gdpa": ("float64", True),
    }[family]
    lengths = _lengths(draw)
    longest = max(max(batch) for batch in lengths)
    n = max(2, longest + draw.pick([0, 0, 1, 2]))
    if family == "fbgemm" and longest > 2 and draw.chance(0.2):
        draw.features.append("truncated")
        n = longest - 1
    sizes = {"h": draw.pick([1, 2, 3]), "d": 4, "e": draw.pick([4, 6]), "n": n, "m": 5, "s": 3}
    sides = "".join(side for side in "qk" if side in draw.sides)
    return Program(
        seed=seed, label=FUSABLE if sides else REFUSABLE, features=tuple(draw.features),
        source=_source(draw, family, result), specs=draw.specs,
        sizes=tuple(sizes for _ in lengths), dtype=dtype, training=training,
        lengths=lengths, sides=sides, offsets=draw.pick(["int64", "int32"]),
    )  # fmt: skip


def _lengths(draw: Sketch) -> tuple[tuple[int, ...], ...]:
    """One batch, or two for which one compile must do."""

    def batch() -> tuple[int, ...]:
        lengths = tuple(draw.pick([0, 1, 1, 2, 3, 4, 5, 7]) for _ in range(draw.pick([2, 3, 4])))
        return lengths if sum(lengths) > 1 else (*lengths[:-1], 3)

    return (batch(), batch()) if draw.chance(0.25) else (batch(),)


def _operands(draw: Sketch, kind: str, heads: str) -> None:
    h = "" if heads == "none" else "h "
    draw.specs["q"] = {"seeds": f"s {h}d", "new queries": f"b s {h}d"}.get(kind, f"l {h}d")
    draw.specs["k"] = f"b m {h}d" if kind == "short keys" else f"l {h}d"
    draw.specs["v"] = f"b m {h}e" if kind == "short keys" else f"l {h}e"
    draw.specs["n"] = "scalar: n"


def _offsets(draw: Sketch, family: str) -> None:
    """`o_q`, `o_k`, `o_v`, `o_out`: one and the same, spelled once or several times."""
    names = ["o_q", "o_k", "o_v", "o_out"]
    if draw.chance(0.6):
        draw.specs["offsets"] = "offsets"
        draw.lines += [f"{name} = offsets" for name in names]
        return
    draw.specs["lengths"] = "lengths"
    spellings = [*OFFSETS]
    if family == "fbgemm":
        spellings.append("torch.ops.fbgemm.asynchronous_complete_cumsum(lengths)")
    draw.features.append("offsets:spelled")
    once = draw.chance(0.5)
    text = draw.pick(spellings)
    if once:
        draw.lines.append(f"summed = {text}")
    for name in names:
        spelled = "summed" if once else draw.pick(spellings)
        draw.lines.append(f"{name} = {spelled}{draw.pick(['', '', '.to(torch.int32)'])}")


def _padding(draw: Sketch, kind: str, family: str) -> None:
    """`p_q`, `p_k`, `p_v`: padded, as far as they are jagged; and what may stand in the way."""
    dense = {"short keys": "kv", "seeds": "q", "new queries": "q"}.get(kind, "")
    if "q" in dense:
        draw.sides.discard("q")
    if "k" in dense:
        draw.sides.discard("k")
    for name in "qkv":
        if name in dense:
            draw.lines.append(f"p_{name} = {name}")
            continue
        side = "q" if name == "q" else "k"
        offsets, fill = f"o_{name}", "0.0"
        if draw.chance(0.05):
            draw.specs["other"] = "other"
            draw.other.add(name)
            offsets = "other"
        if name == "v" and draw.chance(0.05):
            fill = "1.0"
            draw.spoil("filled with ones", "k")
        if name in "qk" and draw.chance(0.1):
            fill = "1.0"
            draw.features.append("padding that is never seen")
        draw.lines.append(f"p_{name} = pad({name}, {offsets}, n, {fill})")
        if draw.chance(0.06):
            change = draw.pick([".roll(1, 1)", " * 0.5", ".flip(1)", ".sin()"])
            draw.lines.append(f"p_{name} = p_{name}{change}")
            draw.spoil(f"changed:{name}", side)
        elif draw.chance(0.05):
            draw.lines += [f"p_{name} = p_{name}.clone()", f"p_{name}[:, 0] = 0.5"]
            draw.spoil(f"changed in place:{name}", side)


_ROWS = {"self": "n", "short keys": "n", "seeds": "s", "new queries": "s"}
_SPELLED = {
    "einsum": (
        "torch.einsum('{b}nhd,bmhd->bhnm', p_q, p_k)",
        "torch.einsum('bhnm,bmhe->bnhe', {w}, p_v)",
    ),
    "first": ("{q} @ p_k.transpose(1, 2).mT", "({w} @ p_v.transpose(1, 2)).transpose(1, 2)"),
    "none": ("p_q @ p_k.mT", "{w} @ p_v"),
}  # fmt: skip


def _attention(draw: Sketch, kind: str, heads: str) -> None:
    rows, keys = _ROWS[kind], "m" if kind == "short keys" else "n"
    seeds = kind == "seeds"
    if heads == "folded":
        draw.lines.append("fold = lambda x: x.transpose(1, 2).flatten(0, 1)")
        draw.lines.append("s = torch.bmm(fold(p_q), fold(p_k).mT)")
        unfold = "torch.bmm({w}, fold(p_v)).unflatten(0, (-1, p_q.shape[2])).transpose(1, 2)"
    else:
        product, unfold = _SPELLED[heads]
        q = "p_q.transpose(0, 1)" if seeds else "p_q.transpose(1, 2)"
        draw.lines.append(f"s = {product.format(b='' if seeds else 'b', q=q)}")
    if draw.chance(0.5):
        draw.lines.append(f"s = s * {draw.pick(['0.5', '0.3', 'p_k.shape[-1] ** -0.5'])}")
    dims = {"none": "1", "folded": ""}.get(heads, "4")
    if dims and draw.chance(0.3):
        _bias(draw, rows, keys, heads)
    draw.lines.append(f"w = {draw.pick(ACTIVATIONS).format(s='s')}")
    if draw.chance(0.4):
        draw.lines.append("w = w / n")
    if draw.chance(0.5):
        _mask(draw, rows, keys, heads, kind)
    draw.lines.append(f"out = {unfold.format(w='w')}")


def _bias(draw: Sketch, rows: str, keys: str, heads: str) -> None:
    form = draw.pick([f"{rows} {keys}", f"b 1 {rows} {keys}", f"h {rows} {keys}"])
    if heads == "none":
        form = draw.pick([f"{rows} {keys}", f"b {rows} {keys}"])
    draw.specs["bias"] = form
    draw.features.append(f"bias:{form}")
    draw.lines.append("s = s + bias")


def _mask(draw: Sketch, rows: str, keys: str, heads: str, kind: str) -> None:
    """Masks of indices and lengths, and scales and differences of padded tokens."""
    middle = "" if heads in ("none", "folded") else "None, "
    options = ["causal", "window"]
    if kind != "short keys" and heads != "folded":
        options += ["lengths", "token key"]
    if kind == "self" and heads != "folded":
        options += ["token row", "difference", "targets"]
    chosen = draw.pick(options)
    draw.features.append(f"mask:{chosen}")
    at = "torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])[None, :]"
    lengths = "(o_k[1:] - o_k[:-1])"
    if chosen in ("causal", "window"):
        draw.lines.append(f"i, j = {at}")
        keep = "i >= j" if chosen == "causal" else "(i - j).abs() <= 2"
    elif chosen == "lengths":
        keep = f"(torch.arange(s.shape[-1]) < {lengths}[:, None])[:, {middle}None, :]"
    elif chosen == "targets":
        draw.lines.append(f"i, j = {at}")
        draw.lines.append(f"last = ({lengths} - 1).clamp(min=0)[:, {middle}None, None]")
        keep = "(torch.minimum(i, last) > torch.minimum(j, last)) | (i == j)"
    else:
        draw.specs["token"] = "l 1"
        padded = "pad(token, o_k, n)"
        draw.lines.append(f"t = {padded}[:, {middle}]" if middle else f"t = {padded}")
        text = {"token key": "t.mT", "token row": "t", "difference": "(t - t.mT)"}[chosen]
        draw.lines.append(f"w = w * {text}")
        return
    if draw.chance(0.5):
        draw.lines.append(f"w = w * ({keep})")
    else:
        draw.lines.append(f"w = w.masked_fill(~({keep}), 0.0)")


def _output(draw: Sketch, kind: str) -> str:
    """What the program returns."""
    if kind in ("seeds", "new queries"):
        return "out"
    drawn = draw.rng.random()
    if drawn < 0.8:
        draw.lines.append("rows = unpad(out, o_out, q.shape[0])")
        return "rows" if draw.chance(0.7) else "rows * 2.0 + q.sum()"
    if drawn < 0.87:
        draw.spoil("padded output", "q")
        return "out"
    if drawn < 0.94:
        draw.spoil("output used twice", "q")
        draw.lines.append("rows = unpad(out, o_out, q.shape[0])")
        return "rows, out.sum()"
    draw.other.add("out")
    draw.specs["other"] = "other"
    draw.lines.append("rows = unpad(out, other, q.shape[0])")
    return "rows"


def _source(draw: Sketch, family: str, result: str) -> str:
    head = {
        "fbgemm": SLOW + FBGEMM.replace("{call}", draw.pick(FBGEMM_CALLS)),
        "aten": ATEN,
        "wrapped": WRAPPED,
        "gdpa": GDPA,
    }[family]
    imports = ["import torch", "import torch.nn.functional as F"]
    imports += ["import fbgemm_gpu"] if family == "fbgemm" else []
    body = "\n".join(f"    {line}" for line in [*draw.lines, f"return {result}"])
    parameters = ", ".join(draw.specs)
    return "\n".join([*imports, head, "", f"def program({parameters}):", body, ""])
