"""Plain programs on the kernels: `python -m tests.adversary --kernels` runs more of them."""

import pytest

from tests.adversary.compiled import KERNELS, compiled, run_compiled
from tests.adversary.generator import generate
from tests.adversary.program import Operand, Program

pytestmark = pytest.mark.cuda
EACH = 6  # programs for each kernel
SEEDS = {
    jagged: [s for s in range(200) if (generate(s, "kernels").family == "jagged") is jagged]
    for jagged in (False, True)
}
SAMPLE = [
    (seed, KERNELS[i % len(KERNELS)])
    for seeds in SEEDS.values()
    for i, seed in enumerate(seeds[: EACH * len(KERNELS)])
]


@pytest.mark.parametrize(("seed", "kernel"), SAMPLE)
def test_programs(seed: int, kernel: str) -> None:
    outcome = run_compiled(seed, device="cuda", kernels=(kernel,))
    assert outcome.status not in ("wrong", "crash"), f"{outcome}\n{generate(seed, 'kernels')}"


# Seeds 100184 and 500049 of a generator that is no more.
A_VIEW = """
import torch
import torch.nn.functional as F


def f(query, key, value, vector, counts):
    b, n, m = key.shape[1], counts.shape[2], key.shape[3]
    q = torch.tanh(query.chunk(2, dim=-1)[1])
    k = torch.permute(key, (4, 2, 0, 1, 3))
    k = k.to(k.dtype)
    v = value.chunk(2, dim=-1)[0] + vector
    s = torch.einsum("ndghb, hdgbm -> bghnm", q, k)
    s = s * torch.ones_like(s).triu(-1)
    w = F.selu(s) * 1.0
    w = F.leaky_relu(w, negative_slope=0.2) * 1.0
    w = w.contiguous() / counts.expand(b, 2, 1, n, m)
    return torch.einsum("bghnm, bgehm -> nehbg", w, v)
"""
A_FACTOR = """
import torch
import torch.nn.functional as F
from tests.jagged import pad, unpad


def f(q, k, v, lengths):
    offsets = F.pad(lengths.cumsum(0), (1, 0))
    others = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    a = pad(q, offsets, 601).transpose(1, 2)
    b, c = (pad(x, others, 601).transpose(1, 2) for x in (k, v))
    w = F.hardswish(a @ b.mT * 0.3)
    i, j = torch.arange(601)[:, None], torch.arange(601)[None, :]
    last = (others[1:] - others[:-1] - 1).clamp(min=0)[:, None, None, None]
    w = w.masked_fill(~((torch.minimum(i, last) > torch.minimum(j, last)) | (i == j)), 0.0)
    rows = unpad((w @ c).transpose(1, 2), others, q.shape[0])
    return rows * 2.0 + q[..., :1].cos()
"""


def program(source: str, dtype: str, family: str, dims: dict[str, str], sizes: dict, **more):
    operands = [Operand(name, tuple(x.split()), grad=True) for name, x in dims.items()]
    return Program(
        0, source, [*operands, more.pop("last")], dtype, "exact", (), family, (sizes,),
        device="cuda", **more,
    )  # fmt: skip


FOUND = {
    "a view of a kept tensor, padded on torch 2.11": ("chunked", program(
        A_VIEW, "float32", "einsum",
        {"query": "n d g h 2*b", "key": "g b d m h", "value": "b g e h 2*m", "vector": "m"},
        {"h": 1, "g": 2, "d": 96, "e": 96, "b": 2, "n": 596, "m": 388},
        last=Operand("counts", ("1", "h", "n", "1"), kind="int64", values="count"),
    )),
    "a factor for each row and head, in half tiles": ("triton", program(
        A_FACTOR, "bfloat16", "jagged", dict.fromkeys("qkv", "l h d"),
        {"h": 2, "d": 64, "l": 1124, "b": 6},
        last=Operand("lengths", ("b",), kind="int64", values="lengths"),
        lengths=((79, 15, 330, 100, 0, 600),),
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_programs_that_failed(name: str) -> None:
    kernel, drawn = FOUND[name]
    outcome = compiled(drawn, kernel=kernel)
    assert outcome.status == "right" and outcome.matches, outcome
