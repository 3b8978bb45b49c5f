"""Padding and unpadding as programs define them: `pad` and `unpad`, by library."""

FBGEMM = """import fbgemm_gpu


def pad(values, offsets, n, fill=0.0):
    flat = values.reshape(values.shape[0], -1)
    padded = {call}
    return padded.reshape(-1, n, *values.shape[1:])


def unpad(padded, offsets, length):
    flat = padded.flatten(2) if padded.dim() > 3 else padded
    values = torch.ops.fbgemm.dense_to_jagged(flat, [offsets], length)[0]
    return values.reshape(length, *padded.shape[2:])
"""
FBGEMM_CALLS = (
    "torch.ops.fbgemm.jagged_to_padded_dense(flat, [offsets], [n], fill)",
    "torch.ops.fbgemm.jagged_to_padded_dense("
    "values=flat, offsets=[offsets], max_lengths=[n], padding_value=fill)",
    "torch.ops.fbgemm.jagged_to_padded_dense.default(flat, [offsets], [n], fill)",
)
PADDING = {
    "aten": """
def pad(values, offsets, n, fill=0.0):
    flat = values.reshape(values.shape[0], -1)
    made = torch.ops.aten._jagged_to_padded_dense_forward(flat, [offsets], [n], fill)
    return made.reshape(-1, n, *values.shape[1:])


def unpad(padded, offsets, length):
    flat = padded.reshape(*padded.shape[:2], -1)
    made = torch.ops.aten._padded_dense_to_jagged_forward(flat, [offsets], length)
    return made.reshape(length, *padded.shape[2:])
""",
    "wrapped": """from tests.jagged import Pad, PadOnes, Unpad


def pad(values, offsets, n, fill=0.0):
    call = PadOnes if fill else Pad
    flat = call.apply(values.reshape(values.shape[0], -1), offsets, n)
    return flat.reshape(-1, n, *values.shape[1:])


def unpad(padded, offsets, length):
    flat = Unpad.apply(padded.reshape(*padded.shape[:2], -1), offsets, length)
    return flat.reshape(length, *padded.shape[2:])
""",
    "gdpa": """
def pad(values, offsets, n, fill=0.0):
    made = torch.ops.gdpa.jagged_to_padded_dense(values, offsets, n)
    if fill:
        past = torch.arange(n)[None, :] >= offsets.diff()[:, None]
        made = made.masked_fill(past.reshape(*past.shape, *[1] * (made.dim() - 2)), fill)
    return made


def unpad(padded, offsets, length):
    return torch.ops.gdpa.dense_to_jagged(padded, offsets, length)
""",
}
