"""The Blackwell forward kernel, as PTX for sm_100a on the emulator, against the formula in fp64."""

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.plan import plan_of
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config
from gdpa_inductor.ops import operands_of
from gdpa_inductor.rejection import GDPAError
from tests.emulator import recording, run

from .cute_cases import (
    BF16,
    CASES,
    MORE,
    SELF,
    WIDE,
    Case,
    check_integers,
    check_neighbours,
    check_output,
    unwritten,
)
from .cute_memory import tables
from .marks import slow_but

# The channels of V go in two slices.
SLICED = Case("Dv 512", d=64, dv=512, m=140, n=200, h=2, hk=1)
JAGGED_SLICED = Case("jagged, Dv 320", d=64, dv=320, q_lengths=SELF, k_lengths=SELF)
QUICK = {JAGGED_SLICED.name, *(case.name for case in CASES)}  # both have the same order
# Parts of K and V: 4 and 4, 1 and 4, and 3 and 2, which two query tiles read.
OFTEN = ("D 256", "D 8, Dv 200", "D 256, tiled bias", "D 256, no keys", "D 192, Dv 128, causal")


def forward(case: Any, o, schedules=("lazy",), kind=None, out=None, more=()) -> torch.Tensor:
    """O, NaN where nothing was stored; rows that no sequence owns are zero. case: says `fast` and
    `ctas`. kind: of the configuration, by default Blackwell's. out: room for it. more: what else
    kernels write."""
    out = unwritten(o) if out is None else out
    offsets = o.cu_seqlens_k if o.cu_seqlens_k is not None else o.cu_seqlens_q
    lengths = torch.zeros(1) if offsets is None else offsets[1:] - offsets[:-1]
    order = torch.nn.functional.pad(torch.argsort(lengths, descending=True), (0, 1))

    def start() -> None:
        room.used = 0
        options = {"fast": case.fast, "ctas": case.ctas, "order": order, "kind": kind}
        launch.forward(o, stream=0, out=out, **options)

    with recording(), tables() as room:
        memory = [*o.differentiable, *o.indices, order, out, room.bytes, *more]
        run(start, memory, schedules=schedules)
    return out


@pytest.mark.parametrize("case", slow_but(QUICK, [JAGGED_SLICED, SLICED, *CASES, *MORE]))
def test_forward(case: Case):
    o = case.operands()
    check_output(forward(case, o), o)


@pytest.mark.parametrize("case", slow_but(OFTEN, WIDE))
def test_wide_heads(case: Case):
    """K and V come in parts. With one query tile key blocks have the buffers of scores in turn."""
    o = case.operands()
    assert plan_of(o, True, True, Sm100Config).config.wide
    check_output(forward(case, o, schedules=("lazy", "random", "eager")), o)


@pytest.mark.parametrize("dims", [(64, 64), (200, 40), (256, 256)], ids=str)
def test_the_schedule_does_not_matter(dims: tuple[int, int]):
    """Copies and products complete late, early or in any order: the same bits (`run` compares)."""
    case = Case("schedules", d=dims[0], dv=dims[1], m=300, n=270, ctas=1)
    forward(case, case.operands(), schedules=("lazy", "random", "eager"))


@pytest.mark.parametrize("dim", [64, 256])
def test_neighbours_do_not_leak(dim: int):
    check_neighbours(forward, dim)


@pytest.mark.parametrize("dims", [(64, 64), (200, 72), (72, 200)], ids=str)
def test_exact_on_integers(dims: tuple[int, int]):
    check_integers(forward, d=dims[0], dv=dims[1], m=300, n=300)


@pytest.mark.parametrize("kind", [Sm90Config, Sm100Config])
def test_integers_of_8_bits_have_no_sign(kind):
    """A kernel's pointer forgets that."""
    program = "a0:i[b,kv_idx]; mul(silu(mul(s,0.088)),float(a0))"
    case = Case("bytes", program, d=64, m=70, n=140, aux=(torch.uint8,))
    o = case.operands()
    assert o.aux[0].max() > 127
    check_output(forward(case, o, kind=kind), o)


@pytest.mark.parametrize("kind", [Sm90Config, Sm100Config])
def test_integers_above_2_24_tell_tiles_apart(kind):
    """As floats they would be rounded: the last key of the first tile is hidden."""
    program = "a0:i[h]; where(lt(kv_idx,sub(a0,16777217)),sigmoid(s),0.0)"
    case = Case("large", program, d=64, m=70, n=256, aux=(torch.int32,))
    o = case.operands()
    o.aux[0][0] = 16777217 + 127
    check_output(forward(case, o, kind=kind), o)


@pytest.mark.parametrize(
    ("operands", "complaint"),
    [
        ({"dtype": torch.float32}, "takes fp16 and bf16 operands"),
        ({"d": 12}, "a head dim of 12"),
        ({"d": 264}, "a head dim of 264"),
    ],
)
def test_what_it_does_not_take(operands: dict, complaint: str):
    o = Case("refused", **operands).operands()
    with pytest.raises(GDPAError, match=complaint):
        launch.forward(o, ctas=1, stream=0)


def test_nothing_to_do_is_zero():
    query, empty = torch.ones(1, 1, 4, 64, dtype=BF16), torch.ones(1, 1, 0, 64, dtype=BF16)
    inputs = operands_of(query, empty, empty, [], [], "sigmoid(s)")
    out = launch.forward(inputs, ctas=1, stream=0)
    assert torch.equal(out, torch.zeros_like(query))


def test_sequences_without_keys_need_no_table_of_a_mask():
    """There are rows of keys, but none is a sequence's. A table would have no cell."""
    query, rows = torch.ones(2, 1, 4, 64, dtype=BF16), torch.ones(3, 1, 64, dtype=BF16)
    mask, none = torch.ones(2, 4, 0, dtype=torch.bool), torch.zeros(3, dtype=torch.int32)
    program = "a0:b[b,q_idx,kv_idx]; where(a0,sigmoid(s),0.0)"
    inputs = operands_of(query, rows, rows, [mask], [], program, None, none, None, 0)
    out = launch.forward(inputs, ctas=1, stream=0)
    assert torch.equal(out, torch.zeros_like(query))
