"""The jagged family: values [L, H, D] and offsets, padded, attended to, and unpadded again."""

from .draft import Draft
from .regions import MASKING, _opening, write_activation, write_scores, write_second

PAD = {
    "fbgemm": "torch.ops.fbgemm.jagged_to_padded_dense({x}, [{o}], [{n}], {fill})",
    "aten": "torch.ops.aten._jagged_to_padded_dense_forward({x}, [{o}], [{n}], {fill})",
}
UNPAD = {
    "fbgemm": "torch.ops.fbgemm.dense_to_jagged({x}, [{o}], {total})[0]",
    "aten": "torch.ops.aten._padded_dense_to_jagged_forward({x}, [{o}], {total})",
}


def write_jagged(draft: Draft) -> None:
    """Padded by offsets, [B, H, n, D] in the middle, unpadded by offsets."""
    library = draft.fact("library", draft.pick("fbgemm", "fbgemm", "aten"))
    if library == "fbgemm":
        draft.settled["preamble"] = "import fbgemm_gpu\n" + draft.settled.get("preamble", "")
    lengths, total, n = _sizes(draft)
    _operands(draft, lengths, total)
    draft.stage("start")
    _offsets(draft)
    fill = draft.fact("fill", "0.0")
    for name in "qkv":
        values = getattr(draft, name)
        padded = PAD[library].format(x=f"{values}.flatten(1)", o=_for(draft, name), n=n, fill=fill)
        width = "e" if name == "v" else "d"
        draft.emit(f"{name} = {padded}.view(b, n, h, {width}).transpose(1, 2)")
        setattr(draft, name, name)
    draft.stage("before")
    _opening(draft)
    write_scores(draft)
    draft.stage("middle")
    write_activation(draft)
    draft.stage("weights")
    _mask(draft)
    draft.stage("late")
    write_second(draft)
    draft.stage("after")
    flat = f"{draft.o}.transpose(1, 2).flatten(2)"
    draft.emit(f"out = {UNPAD[library].format(x=flat, o=_for(draft, 'out'), total='total')}")
    draft.o = "out"
    draft.stage("end")


def _sizes(draft: Draft) -> tuple[tuple[int, ...], int, int]:
    inputs = draft.settled.get("given_offsets")
    lengths = draft.fact(
        "lengths", tuple(draft.random.randint(1, 6) for _ in range(draft.pick(1, 2, 3)))
    )
    total = max(inputs) if inputs else sum(lengths)
    total += draft.fact("slack", 0)
    count = len(inputs) - 1 if inputs else len(lengths)
    n = draft.fact("padding", max((*lengths, 4)))
    draft.sizes = {"b": count, "h": draft.pick(1, 2), "n": n, "m": n}
    draft.sizes |= {"d": draft.pick(2, 4), "e": draft.pick(2, 4)}
    return lengths, total, n


def _operands(draft: Draft, lengths: tuple[int, ...], total: int) -> None:
    z = draft.sizes
    facts = draft.settled.get("facts", {})
    for name, width in (("q", "d"), ("k", "d"), ("v", "e")):
        draft.operand(name, total, z["h"], z[width], **facts.get(name, {}))
    inputs = draft.settled.get("given_offsets")
    if inputs:
        draft.operand("offsets", len(inputs), kind="int64", values=inputs, grad=False)
    else:
        draft.operand("lens", len(lengths), kind="int64", values=lengths, grad=False)
    q, v = draft.fact("q_source", "q"), draft.v
    draft.emit(f"total, h, d = {q}.shape", f"e = {v}.shape[-1]", f"n = m = {z['n']}")
    draft.emit(f"b = {'offsets.numel() - 1' if inputs else 'lens.numel()'}")


def _offsets(draft: Draft) -> None:
    if not draft.settled.get("given_offsets"):
        written = draft.settled.get("offsets_written")
        if written or draft.fact("by_cumsum", draft.coin()):
            cast = draft.pick("", ".int()", ".int().long()", ".to(torch.int32)", ".int()")
            draft.emit(f"ends = {draft.pick('lens.cumsum(0)', 'torch.cumsum(lens, 0)')}")
            if written:
                draft.emit(written.format(x="ends"))
            draft.emit(f"offsets = F.pad(ends{cast}, (1, 0))")
        elif draft.fact("library") == "fbgemm":
            draft.emit("offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(lens)")
        else:
            draft.emit("offsets = torch.cat([lens.new_zeros(1), lens.cumsum(0)])")
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


def _for(draft: Draft, name: str) -> str:
    where = draft.settled.get("other_for", "")
    return "other" if name == where or (where == "kv" and name in ("k", "v")) else "offsets"


def _mask(draft: Draft) -> None:
    result = draft.settled.get("mask")
    if result is not None:
        name = result(draft)
    elif "lens" in draft.operands and draft.fact("masked_by_lengths", draft.coin(0.4)):
        draft.emit("mask = torch.arange(m) < lens[:, None, None, None]")
        name = "mask"
    elif draft.coin(0.4):
        draft.emit("mask = torch.ones(n, m, dtype=torch.bool).tril()")
        name = "mask"
    else:
        return
    text = draft.settled.get("masking") or draft.random.choice(MASKING)
    draft.emit(f"w = {text.format(w=draft.w, x=name)}")
    draft.saved.discard("w")
