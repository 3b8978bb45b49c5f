"""Nested tensors, and functions of autograd's that pad and unpad."""

import torch
import torch.nn.functional as F

from ..paddings import pad_function, unpad_function
from ..rows import Programs, normal, plus, values
from .given import T
from .jagged import jag

PROGRAMS = Programs()
case = PROGRAMS.case
OFFSETS = values([0, 2, 5, 9])
rows = lambda *shape: normal(*[(9, *shape)] * 3, dtype=torch.float32)


def padded(x, offsets, fill=0.0, most=5):
    nested = torch.nested.nested_tensor_from_jagged(x, offsets, max_seqlen=most, min_seqlen=2)
    return nested.to_padded_tensor(fill)


@case(plus(rows(2, 4), OFFSETS))
def nested_padded_grad(q, k, v, o):
    a, b, c = (padded(x.flatten(1), o).view(3, 5, 2, 4).transpose(1, 2) for x in (q, k, v))
    return F.silu(a @ T(b)) @ c


@case(plus(rows(4), OFFSETS, values([0, 3, 6, 9])))
def nested_two_offsets(q, k, v, o, o2):
    return torch.sigmoid(padded(q, o) @ T(padded(k, o2, 0.5))) @ padded(v, o2, 1.0)


@case(plus(rows(4), OFFSETS))
def nested_there_and_back(q, k, v, o):
    from torch.nested._internal.nested_tensor import nested_from_padded

    a, b, c = (padded(x, o, most=4) for x in (q, k, v))
    p = torch.sigmoid(a @ T(b)) @ c
    return nested_from_padded(p, o, ragged_idx=1, sum_S=9).values()


def padded_and_unpadded(pad, unpad):
    def program(q, k, v, o):
        w = torch.sigmoid(pad.apply(q, o) @ T(pad.apply(k, o)))
        return unpad.apply(w @ pad.apply(v, o), o)

    return program


PADS = {"PadF": pad_function(5), "PadF2": pad_function(5, lambda g: g * 2)}
UNPADS = {
    "UnpadF": unpad_function(9, 5),
    "UnpadF1": unpad_function(9, 5, fill=1.0),
    "UnpadFd": unpad_function(9, 5, lambda g: g.detach() * 2),
    "UnpadFo": unpad_function(
        9, 5, offsets=lambda o: F.pad(o.flip(0).diff().abs().cumsum(0), (1, 0))
    ),
}
for a, pad in PADS.items():
    for b, unpad in UNPADS.items():
        PROGRAMS.add(f"func_{a}_{b}", padded_and_unpadded(pad, unpad), jag(grad=True))
