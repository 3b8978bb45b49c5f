"""Tables of writes and aliases, as text over {x}: every way that torch's documentation gives to
change a tensor in place, and to hold the same storage under another name.
"""

from ..draft import Draft

# Ways to write that need nothing of a shape.
WRITES = (
    "{x}.mul_(0.5)",
    "{x}.add_(0.25)",
    "{x}.sub_(1)",
    "{x}.div_(3.0)",
    "{x}.neg_()",
    "{x}.zero_()",
    "{x}.fill_(0.5)",
    "{x}.clamp_(-0.5, 0.5)",
    "{x}.clamp_min_(0.1)",
    "{x}.copy_(torch.ones_like({x}))",
    "{x}.masked_fill_({x} > 0.5, 0.0)",
    "{x}.lerp_(torch.ones_like({x}), 0.5)",
    "{x}.addcmul_(torch.ones_like({x}), torch.ones_like({x}), value=0.3)",
    "{x}.index_fill_(-1, torch.tensor([0]), 0.5)",
    "torch._foreach_mul_([{x}], 0.5)",
    "torch._foreach_add_([{x}], 1.0)",
    "torch.neg_({x})",
    "F.relu({x}, inplace=True)",
    "F.hardtanh_({x}, -0.6, 0.6)",
    "torch.Tensor.mul_({x}, 2.0)",
    "{x} *= 0.5",
    "{x} += 1",
    "{x} -= 0.25",
    "{x} /= 2",
)
# Writes to chosen elements.
ELEMENTS = (
    "{x}[..., 0] = 0.25",
    "{x}[..., :1] += 1.0",
    "{x}[..., -1:].zero_()",
    "{x}[:1] = 0",
    "{x}[{x} > 0] = 0.5",
    "{x}[..., torch.tensor([0])] = 1.5",
    "{x}.index_put_((torch.tensor([0]),), torch.ones((), dtype={x}.dtype))",
    "{x}.scatter_(-1, torch.zeros({x}.shape, dtype=torch.long), 0.5)",
    "{x}.index_add_(-1, torch.tensor([0]), torch.ones_like({x}[..., :1]))",
    "{x}.index_copy_(-1, torch.tensor([0]), torch.ones_like({x}[..., :1]))",
    "{x}.masked_scatter_({x} > 0, torch.ones_like({x}))",
    "{x}.flatten(0, -3).select(0, 0).fill_diagonal_(0.5)",
    "{x}.tril_()",
    "{x}.triu_(1)",
    "{x}.diagonal(dim1=-2, dim2=-1).fill_(0.5)",
)
# The same storage under another name. "contiguous" ones need a contiguous tensor.
VIEWS = (
    "{x}[:]",
    "{x}[...]",
    "{x}.view({x}.shape)",
    "{x}.view_as({x})",
    "{x}.transpose(-1, -2)",
    "{x}.mT",
    "{x}.swapaxes(-1, -2)",
    "{x}.movedim(-1, 0)",
    "{x}.unsqueeze(0)",
    "{x}.unsqueeze(-1).squeeze(-1)",
    "{x}.narrow(-1, 0, 1)",
    "{x}.select(-1, 0)",
    "{x}[..., 0]",
    "{x}[..., ::2]",
    "{x}[..., None]",
    "{x}.diagonal(dim1=-2, dim2=-1)",
    "{x}.expand_as({x})",
    "{x}.unfold(-1, 1, 1)",
    "{x}.to({x}.dtype)",
    "{x}.type_as({x})",
    "{x}.reshape({x}.shape)",
    "{x}.as_strided({x}.shape, {x}.stride())",
    "torch.as_strided({x}, {x}.shape, {x}.stride())",
    "torch.transpose({x}, -1, -2)",
    "{x}.permute(*reversed(range({x}.dim())))",
)
ANY = ("{x}", *VIEWS)
CONTIGUOUS_VIEWS = (
    "{x}.view(-1)",
    "{x}.reshape(-1)",
    "{x}.flatten()",
    "{x}.contiguous()",
    "{x}.ravel()",
    "{x}.view(-1)[::2]",
    "{x}.view(1, -1)",
    "{x}.flatten().unflatten(0, {x}.shape)",
)
# Cut off from autograd: the storage is shared, the graph is not.
DETACHED = (
    "{x}.detach()",
    "{x}.data",
    "torch.detach({x})",
    "{x}.detach().view({x}.shape)",
    "{x}.data.transpose(-1, -2)",
    "{x}.detach()[..., :1]",
    "{x}.data[..., 0]",
)
UNTRACKED = tuple(x for x in DETACHED if ".data" in x)
# Views that autograd forbids to write through, where the tensor asks for a gradient.
MULTIPLE = (
    "{x}.unbind(0)[0]",
    "{x}.chunk(2, -1)[0]",
    "{x}.split(1, -1)[0]",
    "torch.tensor_split({x}, 2, -1)[0]",
)
COPIES = (
    "{x} * 1.0",
    "{x} + 0",
    "{x}.clone()",
    "torch.clone({x})",
    "{x} / 2",
    "{x}.mul(0.5)",
    "torch.cat([{x}])",
    "torch.stack([{x}])[0]",
    "{x}.clone(memory_format=torch.contiguous_format)",
    "torch.empty_like({x}).copy_({x})",
    "F.pad({x}, (0, 0))",
    "torch.zeros_like({x}) + {x}",
    "{x}.flip(0).flip(0)",
    "{x}.roll(1, 0)",
    "{x}.repeat(*[1] * {x}.dim())",
    "{x}.to({x}.dtype, copy=True)",
)
# From a narrower to a wider floating dtype; the program settles that the operand is narrower.
WIDER = {
    "bfloat16": (
        "{x}.float()",
        "{x}.to(torch.float32)",
        "{x}.type(torch.float32)",
        "{x}.to(dtype=torch.float32)",
        "{x}.double()",
        '{x}.to("cpu", torch.float32)',
        "torch.ops.aten._to_copy({x}, dtype=torch.float32)",
        "{x}.to(torch.float32, copy=True)",
        "{x}.float().contiguous()",
        "{x}.type_as(torch.zeros((), dtype=torch.float32))",
    ),
    "float32": ("{x}.double()", "{x}.to(torch.float64)", "{x}.to(torch.double).view({x}.shape)"),
}


def write(draft: Draft, x: str, alias: str = "{x}", writes: tuple[str, ...] = WRITES) -> None:
    """Write to `x` through an alias of it; now and then the alias gets a name of its own."""
    seen = alias.format(x=x)
    text = draft.random.choice(writes)
    plain = seen.isidentifier()
    statement = "= " in text and "==" not in text and "=[" not in text
    named = not plain and (text.count("{x}") > 1 or text[3:6] in (" *=", " +=", " -=", " /="))
    if named or (not plain and draft.coin(0.4)) or (statement and not plain):
        name = draft.fresh("part")
        draft.emit(f"{name} = {seen}")
        seen = name
    draft.emit(text.format(x=seen))


def copied(draft: Draft, x: str, table: tuple[str, ...] = COPIES) -> str:
    """Give an operand's name to a copy of it."""
    old = getattr(draft, x)
    setattr(draft, x, x)
    draft.emit(f"{x} = {draft.random.choice(table).format(x=old)}")
    return x


def widened(draft: Draft) -> None:
    """Cast query, key and value to the next wider dtype."""
    cast = "float" if draft.fact("dtype") == "bfloat16" else "double"
    for x in "qkv":
        draft.emit(f"{x} = {getattr(draft, x)}.{cast}()")
        setattr(draft, x, x)


def freeze(draft: Draft, *names: str) -> None:
    """These operands ask for no gradient."""
    facts = draft.settled.setdefault("facts", {})
    for name in names:
        facts.setdefault(name, {})["grad"] = False
