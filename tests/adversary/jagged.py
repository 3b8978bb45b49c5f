"""The jagged family: values [L, H, D] and offsets, padded, attended to, and unpadded again.

Which sides can run on the values alone follows from what was drawn: `sides` of the program. Nothing
here knows how they are found.

padding    fbgemm (packet, keywords, overload), ATen in inference, ATen in an autograd.Function, the
           package's own
offsets    given, or running sums of the lengths in several spellings; int32 and int64; one tensor
           or several
sides      self-attention, short dense keys, shared seeds, new queries; padded outputs; operands
           padded with ones, by other offsets, or changed after the padding
lengths    zeros and ones among them; a padded length above, at and below the longest
"""

from .draft import Draft
from .padding import FBGEMM, FBGEMM_CALLS, PADDING
from .sizes import HEAD_DIMS, long, long_batches, short_batches
from .spellings import ACTIVATIONS
from .steps import MASKING, activation

SUMS = (
    "torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(lens, 0)])",
    "F.pad(lens.cumsum(0), (1, 0))",
    "torch.cat([lens.new_zeros(1), lens.cumsum(0)])",
)
COMPLETE = "torch.ops.fbgemm.asynchronous_complete_cumsum(lens)"
DENSE = {"short keys": "kv", "seeds": "q", "new queries": "q"}  # operands that are not padded
KINDS = ("self", "self", "self", *DENSE)
# Query [B, N, H, D], or with the heads first, or folded into the batch, or without heads.
FIRST = {
    "einsum": "torch.einsum('{b}nhd,bmhd->bhnm', q, k)",
    "first": "q.transpose({axes}) @ k.transpose(1, 2).mT",
    "folded": "torch.bmm(q.transpose(1, 2).flatten(0, 1), k.transpose(1, 2).flatten(0, 1).mT)",
    "none": "q @ k.mT",
}
SECOND = {
    "einsum": "torch.einsum('bhnm,bmhe->bnhe', w, v)",
    "first": "(w @ v.transpose(1, 2)).transpose(1, 2)",
    "folded": "torch.bmm(w, v.transpose(1, 2).flatten(0, 1))"
    ".unflatten(0, (-1, q.shape[2])).transpose(1, 2)",
    "none": "w @ v",
}


def write_jagged(draft: Draft) -> None:
    """Padded by offsets, attended to, and unpadded by offsets."""
    library = _library(draft)
    kind = "self" if draft.hostile else draft.random.choice(KINDS)
    heads = "first" if draft.hostile else draft.pick("einsum", "einsum", "first", "folded", "none")
    if kind == "seeds" and heads != "first":
        heads = "einsum"  # a product with a matrix of two dims is no attention
    for text in (f"padding {library}", f"jagged {kind}", f"jagged heads {heads}"):
        draft.note(text)
    _draw_sizes(draft, kind, library)
    _operands(draft, kind, heads)
    draft.stage("start")
    offsets = _hostile_offsets(draft) if draft.hostile else _spelled_offsets(draft, library)
    if kind in ("self", "short keys") and not draft.hostile and draft.coin(0.25):
        draft.settled["more"] = True
        draft.emit("more = q[..., :1].cos()" if draft.scale == "kernels" else "more = q.sum()")
    _pad(draft, kind, library, offsets)
    if draft.hostile:  # the operands as other families have them, [B, H, N, D]
        draft.emit(*(f"{x} = {x}.transpose(1, 2)" for x in "qkv"))
    draft.stage("before")
    _attend(draft, kind, heads, offsets["k"])
    draft.stage("after")
    _result(draft, kind, offsets)
    draft.stage("end")


def _library(draft: Draft) -> str:
    """By which functions it pads."""
    if draft.scale == "kernels":
        names = ["wrapped", "gdpa"]
    else:
        names = ["fbgemm", "fbgemm", "wrapped", "wrapped", "aten", "gdpa"]
    library = draft.fact("library", draft.random.choice(names))
    preamble = PADDING.get(library) or FBGEMM.replace("{call}", draft.random.choice(FBGEMM_CALLS))
    draft.settled["preamble"] = preamble + draft.settled.get("preamble", "")
    if library == "aten":
        draft.settled["training"] = "none"
    narrow = ("float32", "float32", "bfloat16", *([] if draft.hostile else ["float16"]))
    draft.fact(
        "dtype", draft.random.choice(narrow if library == "fbgemm" else ("float64", "float32"))
    )
    return library


def _draw_sizes(draft: Draft, kind: str, library: str) -> None:
    given = draft.settled.get("given_offsets")
    if draft.scale == "kernels":
        draft.lengths = long_batches(draft)
    elif draft.hostile:
        lengths = tuple(draft.random.randint(1, 6) for _ in range(draft.pick(1, 2, 3)))
        draft.lengths = [draft.fact("lengths", lengths)]
    else:
        draft.lengths = short_batches(draft)
    padded = _padded_lengths(draft, library)
    model = _model(draft)
    calls = [
        model
        | {"l": max(given) if given else sum(lengths), "b": len(given or (0, *lengths)) - 1, "n": n}
        | ({} if kind == "short keys" else {"m": n})
        for lengths, n in zip(draft.lengths, padded)
    ]
    for sizes in calls:
        sizes["l"] += draft.fact("slack", 0)
    draft.sizes, *draft.further = calls


def _model(draft: Draft) -> dict[str, int]:
    random = draft.random
    if draft.scale == "kernels":
        d = random.choice(HEAD_DIMS)
        sizes = {"h": draft.pick(1, 2, 4), "d": d, "e": draft.pick(d, d, random.choice(HEAD_DIMS))}
        return sizes | {"m": long(random), "s": long(random)}
    return {
        "h": draft.pick(1, 2, 3),
        "d": draft.pick(2, 4),
        "e": draft.pick(2, 4, 6),
        "m": 5,
        "s": 3,
    }


def _padded_lengths(draft: Draft, library: str) -> list[int]:
    """The `n` of each call. Some libraries cut rows off."""
    longest = [max(batch, default=0) for batch in draft.lengths]
    if draft.hostile:
        return [draft.fact("padding", max(4, longest[0]))]
    cuts = library in ("fbgemm", "gdpa")
    if draft.scale == "kernels":
        padded = [max(2, n + draft.pick(0, 0, 1, 7, 64)) for n in longest]
        if cuts and draft.coin(0.3):
            padded = [max(2, draft.random.randint(n // 3, n)) for n in padded]
        return [max(padded)] * len(padded) if draft.coin(0.7) else padded
    n = max(longest)
    if cuts and n > 2 and draft.coin(0.2):
        draft.note("truncated")
        return [n - 1] * len(longest)
    return [max(2, n + draft.pick(0, 0, 1, 2))] * len(longest)


def _operands(draft: Draft, kind: str, heads: str) -> None:
    h = "" if heads == "none" else "h "
    facts = draft.settled.get("facts", {})
    query = {"seeds": f"s {h}d", "new queries": f"b s {h}d"}.get(kind, f"l {h}d")
    rows = "b m" if kind == "short keys" else "l"
    for name, dims in (("q", query), ("k", f"{rows} {h}d"), ("v", f"{rows} {h}e")):
        draft.operand(name, dims, **facts.get(name, {}))
    if len(draft.lengths) > 1:
        draft.operand("n", "n", kind="scalar")
    else:
        draft.emit(f"n = {draft.sizes['n']}")
    if kind != "short keys":
        draft.emit("m = n")
    draft.settled["named"] = "ns" if kind == "short keys" else "nms"


def _hostile_offsets(draft: Draft) -> dict[str, str]:
    """The name of the offsets of each operand and of the output."""
    given = draft.settled.get("given_offsets")
    if given:
        draft.operand("offsets", (str(len(given)),), kind="int64", values=given)
    else:
        draft.operand("lens", "b", kind="int64", values="lengths")
        _sums(draft)
    other = draft.settled.get("other_offsets")
    if other and draft.settled.get("other_written"):
        draft.emit(
            "others = lens.cumsum(0)",
            f"others.{draft.pick('clamp_(max=4)', 'sub_(1)', 'clamp_(max=3)')}",
            f"other = F.pad(others{draft.pick('.int()', '.int().long()', '')}, (1, 0))",
        )
    elif other:
        draft.emit(f"other = {other.format(x='offsets')}")
    if draft.settled.get("lengths_written"):
        draft.emit(draft.settled["lengths_written"].format(x="lens"))
    where = draft.settled.get("other_for", ())
    return {x: "other" if x in where else "offsets" for x in ("q", "k", "v", "out")}


def _sums(draft: Draft) -> None:
    written = draft.settled.get("offsets_written")
    if written or draft.fact("by_cumsum", draft.coin()):
        cast = draft.pick("", ".int()", ".int().long()", ".to(torch.int32)", ".int()")
        draft.emit(f"ends = {draft.pick('lens.cumsum(0)', 'torch.cumsum(lens, 0)')}")
        if written:
            draft.emit(written.format(x="ends"))
        draft.emit(f"offsets = F.pad(ends{cast}, (1, 0))")
    else:
        draft.emit(f"offsets = {COMPLETE if draft.fact('library') == 'fbgemm' else SUMS[2]}")


def _spelled_offsets(draft: Draft, library: str) -> dict[str, str]:
    """One and the same, spelled once or several times."""
    names = {x: f"o_{x}" for x in ("q", "k", "v", "out")}
    if draft.coin(0.6):
        kind = draft.pick("int64", "int32")
        draft.operand("offsets", "b+1", kind=kind, values="offsets")
        return dict.fromkeys(names, "offsets")
    draft.operand("lens", "b", kind="int64", values="lengths")
    spellings = (*SUMS, COMPLETE) if library == "fbgemm" else SUMS
    draft.note("offsets spelled")
    once = draft.let("summed", draft.random.choice(spellings)) if draft.coin() else ""
    for name in names.values():
        spelled = once or draft.random.choice(spellings)
        draft.emit(f"{name} = {spelled}{draft.pick('', '', '.to(torch.int32)')}")
    return names


def _spoil(draft: Draft, feature: str, side: str) -> None:
    """A feature because of which a side has to stay padded."""
    draft.note(feature)
    draft.sides.discard(side)


def _pad(draft: Draft, kind: str, library: str, offsets: dict[str, str]) -> None:
    """Pads what is jagged; and what may stand in the way."""
    dense = DENSE.get(kind, "")
    draft.sides -= {*dense}
    for name in "qkv":
        if name in dense:
            continue
        side, fill = "q" if name == "q" else "k", draft.settled.get("fill", "0.0")
        if not draft.hostile:
            fill = _filled(draft, name, side, offsets)
            # The package's own pads with zeros, and what fills them otherwise is a change.
            fill = "0.0" if library == "gdpa" and name != "v" else fill
        source = getattr(draft, name)
        draft.emit(f"{name} = pad({source}, {offsets[name]}, n, {fill})")
        setattr(draft, name, name)
        if not draft.hostile:
            _changed(draft, name, side)


def _filled(draft: Draft, name: str, side: str, offsets: dict[str, str]) -> str:
    if draft.coin(0.05):
        offsets[name] = _other(draft)
    if name == "v" and draft.coin(0.05):
        _spoil(draft, "filled with ones", side)
        return "1.0"
    if name in "qk" and draft.coin(0.1):
        draft.note("padding that is never seen")
        return "1.0"
    return "0.0"


def _other(draft: Draft) -> str:
    if "other" not in draft.operands:
        draft.operand("other", "b+1", kind="int64", values="other")
    return "other"


def _changed(draft: Draft, name: str, side: str) -> None:
    if draft.coin(0.06):
        change = draft.pick(".roll(1, 1)", " * 0.5", ".flip(1)", ".sin()")
        draft.emit(f"{name} = {name}{change}")
        _spoil(draft, f"padded values{change}", side)
    elif draft.coin(0.05):
        draft.emit(f"{name} = {name}.clone()", f"{name}[:, 0] = 0.5")
        _spoil(draft, "padded values changed in place", side)


def _attend(draft: Draft, kind: str, heads: str, offsets: str) -> None:
    rows = {"seeds": "s", "new queries": "s"}.get(kind, "n")
    seeds = kind == "seeds"
    draft.dims = {"none": ("b", rows, "m"), "folded": ("b*h", rows, "m")}.get(
        heads, ("b", "h", rows, "m")
    )
    draft.regions = 1
    text = FIRST[heads].format(b="" if seeds else "b", axes="0, 1" if seeds else "1, 2")
    draft.emit(f"s = {draft.q} @ {draft.k}.mT" if draft.hostile else f"s = {text}")
    draft.s = "s"
    draft.stage("scores")
    if draft.coin():
        draft.assign("middle", f"{draft.s} * {draft.pick('0.5', '0.3', 'd ** -0.5')}")
    if draft.settled.get("bias") or (heads != "folded" and draft.coin(0.3)):
        _bias(draft)
    draft.stage("middle")
    if not draft.hostile and draft.coin(0.8):
        draft.fact("activation", draft.random.choice(list(ACTIVATIONS)))
    activation(draft, "middle")
    if draft.coin(0.4):
        draft.assign("weights", f"{draft.w} / n")
    draft.stage("weights")
    _mask(draft, kind, heads, offsets)
    draft.stage("late")
    draft.emit(f"out = {draft.w} @ {draft.v}" if draft.hostile else f"out = {SECOND[heads]}")
    draft.o = "out"


def _bias(draft: Draft) -> None:
    rows, keys = draft.dims[-2:]
    forms = [(rows, keys), ("b", rows, keys)]
    if len(draft.dims) == 4:
        forms = [(rows, keys), ("b", "1", rows, keys), ("h", rows, keys)]
    dims = draft.settled.get("bias_dims") or draft.random.choice(forms)
    draft.note(f"jagged bias of {len(dims)} dims")
    name = draft.settled.get("bias_name", draft.operand("bias", dims))
    draft.assign("middle", f"{draft.s} + {name}")


def _mask(draft: Draft, kind: str, heads: str, offsets: str) -> None:
    """Masks of indices and lengths, and scales and differences of padded tokens."""
    if draft.settled.get("mask"):
        keep = draft.settled["mask"](draft)
    elif "lens" in draft.operands and draft.fact(
        "masked_by_lengths", draft.hostile and draft.coin()
    ):
        keep = draft.let("mask", "torch.arange(m) < lens[:, None, None, None]")
    elif draft.coin():
        keep = _drawn_mask(draft, kind, heads, offsets)
    else:
        return
    if keep:
        text = draft.settled.get("masking") or draft.random.choice(MASKING)
        draft.assign("weights", text.format(s=draft.w, x=f"({keep})"))


def _drawn_mask(draft: Draft, kind: str, heads: str, offsets: str) -> str:
    middle = "" if heads in ("none", "folded") else "None, "
    options = ["causal", "window"]
    if kind != "short keys" and heads != "folded" and not draft.hostile:
        options += ["lengths", "token key"]
        options += ["token row", "difference", "targets"] if kind == "self" else []
    chosen = draft.random.choice(options)
    draft.note(f"jagged mask {chosen}")
    lengths = f"({offsets}[1:] - {offsets}[:-1])"
    if chosen == "lengths":
        return f"(torch.arange(m) < {lengths}[:, None])[:, {middle}None, :]"
    if chosen.startswith("token") or chosen == "difference":
        draft.operand("token", "l 1")
        padded = f"pad(token, {offsets}, n)"
        draft.emit(f"t = {padded}[:, {middle}]" if middle else f"t = {padded}")
        text = {"token key": "t.mT", "token row": "t", "difference": "(t - t.mT)"}[chosen]
        draft.assign("weights", f"{draft.w} * {text}")
        return ""
    draft.emit("i, j = torch.arange(s.shape[-2])[:, None], torch.arange(m)[None, :]")
    if chosen == "targets":
        draft.emit(f"last = ({lengths} - 1).clamp(min=0)[:, {middle}None, None]")
        return "(torch.minimum(i, last) > torch.minimum(j, last)) | (i == j)"
    width = draft.pick(0, 3, 40, 127, 200) if draft.scale == "kernels" else 2
    return "i >= j" if chosen == "causal" else f"(i - j).abs() <= {width}"


def _result(draft: Draft, kind: str, offsets: dict[str, str]) -> None:
    """What the program returns."""
    if draft.hostile:
        draft.emit(f"out = unpad({draft.o}.transpose(1, 2), {offsets['out']}, l)")
        return
    drawn = draft.random.random()
    if kind in ("seeds", "new queries") or 0.8 <= drawn < 0.87:
        if kind not in ("seeds", "new queries"):
            _spoil(draft, "padded output", "q")
        _two_offsets(draft, offsets)
        return
    if 0.87 <= drawn < 0.94:
        _spoil(draft, "output used twice", "q")
        # A long sum has a larger error in Inductor than in eager.
        draft.emit(f"seen = out{'[0, 0]' if draft.scale == 'kernels' else ''}.sum()")
        draft.outputs.append("seen")
    elif drawn >= 0.94:
        offsets["out"] = _other(draft)
    _two_offsets(draft, offsets)
    draft.emit(f"out = unpad(out, {offsets['out']}, l)")
    if "more" in draft.settled:
        draft.emit("out = out * 2.0 + more")


def _two_offsets(draft: Draft, offsets: dict[str, str]) -> None:
    """Both operands of a side by the same offsets, or the side stays padded."""
    for pair, side in ((("q", "out"), "q"), (("k", "v"), "k")):
        if len({offsets[x] == "other" for x in pair}) == 2:
            _spoil(draft, f"two offsets of {side}", side)
