"""cpu_tiles: the CPU kernel leaves blocks out that the masks make zero, and nothing else."""

import pytest
import torch
from torch import Tensor

from gdpa_inductor.kernels.blocked import loop
from gdpa_inductor.kernels.blocked import tiling as cpu_blocks
from gdpa_inductor.program.score_mod import ScoreMod
from tests import mask_grammar
from tests.lowerings.operators import CPU, as_they_are, in_small_blocks

forward_op, backward_op = CPU.forward, CPU.backward
B, H, N, M = 2, 2, 70, 90
LENGTHS, PADDED = torch.tensor([90, 33]), torch.arange(M) < torch.tensor([[90], [33]])
SEGMENTS = torch.arange(N) * 3 // N
KEY_SEGMENTS = torch.arange(M) * 3 // M

# name: the program, its operands, what share of the blocks is left at most
MASKS: dict[str, tuple[str, list[Tensor], float]] = {
    "none": ("silu(s)", [], 1.0),
    "causal": ("where(ge(q_idx,kv_idx),silu(s),0.0)", [], 0.5),
    "window": ("mul(silu(s),float(le(abs(sub(q_idx,kv_idx)),8)))", [], 0.5),
    "before": ("relu(where(le(kv_idx,q_idx),s,-inf))", [], 0.5),
    "lengths": ("a0:i[b]; mul(silu(s),float(lt(kv_idx,a0)))", [LENGTHS], 0.8),
    "padding": ("a0:b[b,kv_idx]; where(a0,sigmoid(s),0.0)", [PADDED], 0.8),
    "float padding": ("a0:f[b,-,-,kv_idx]; mul(sigmoid(s),a0)", [PADDED[:, None, None] * 1.0], 0.8),
    "segments": (
        "a0:i[q_idx]; a1:i[kv_idx]; where(eq(a0,a1),silu(s),0.0)", [SEGMENTS, KEY_SEGMENTS], 0.7,
    ),
    "a mask as an operand": ("a0:f[q_idx,kv_idx]; mul(silu(s),a0)", [torch.ones(N, M).tril()], 0.5),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the programs run in plain torch: compiled ones have tests of their own."""
    in_small_blocks(monkeypatch)
    as_they_are(monkeypatch)
    monkeypatch.setattr(cpu_blocks, "MAX_THREADS", 1)


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many scores each product of a block has."""
    counts: list[int] = []
    product = loop.BlockLoop._product

    def counted(self, name, block, *rest):
        counts.append(len(range(block.rows.start, block.rows.stop)) * len(range(M)[block.cols]))
        return product(self, name, block, *rest)

    monkeypatch.setattr(loop.BlockLoop, "_product", counted)
    return counts


def matrices() -> tuple[Tensor, ...]:
    sizes = ((N, 8), (M, 8), (M, 12), (N, 12))
    return tuple(torch.randn(B, H, *size, dtype=torch.float64) for size in sizes)


@pytest.mark.parametrize("name", MASKS)
def test_results_are_those_of_all_blocks(name: str, multiplied: list[int]):
    text, aux, share = MASKS[name]
    text = str(ScoreMod.parse(text))
    q, k, v, g = matrices()
    wanted = torch.ops.gdpa.attention(q, k, v, aux, [], text, "")
    found = forward_op(q, k, v, aux, [], text)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert 0.1 < sum(multiplied) / (B * H * N * M) <= share
    multiplied.clear()
    needs = [True] * 3 + [False] * len(aux)
    asked = torch.ops.gdpa.attention_backward(g, q, k, v, aux, [], text, needs, "")
    for grad, other in zip(backward_op(g, q, k, v, aux, [], text, needs), asked):
        torch.testing.assert_close(grad, other, rtol=1e-12, atol=1e-12)
    assert sum(multiplied) / (2 * B * H * N * M) <= share  # S and dP
    multiplied.clear()
    every = forward_op(q, k, v, aux, [], text, skip=False)
    assert torch.equal(every, found) and sum(multiplied) == B * H * N * M


def test_a_mask_that_learns_is_computed_everywhere(multiplied: list[int]):
    text, aux, _ = MASKS["a mask as an operand"]
    q, k, v, g = matrices()
    arguments = (g, q, k, v, aux, [], str(ScoreMod.parse(text)), [False] * 3 + [True])
    (found,) = backward_op(*arguments)
    (wanted,) = torch.ops.gdpa.attention_backward(*arguments, "")
    torch.testing.assert_close(found, wanted)
    assert found.triu(1).abs().min(1).values[:-1].count_nonzero() == 0
    assert found[0, -1] != 0 and sum(multiplied) == 2 * B * H * N * M


def test_what_is_left_out_spreads_no_nan():
    """The one departure from the formula; `skip` turns it off."""
    text, aux, _ = MASKS["lengths"]
    q, k, v, _ = matrices()
    v[1, :, 60:] = torch.nan  # in blocks that are left out
    v[1, :, 34] = torch.inf  # in a block that is computed
    found = forward_op(q, k, v, aux, [], text)
    every = forward_op(q, k, v, aux, [], text, skip=False)
    assert found[1].isnan().all() and every[1].isnan().all() and not found[0].isnan().any()
    v[1, :, 34] = 0.0
    assert not forward_op(q, k, v, aux, [], text).isnan().any()
    assert forward_op(q, k, v, aux, [], text, skip=False)[1].isnan().all()


def test_sequences_leave_out_blocks_of_their_own(multiplied: list[int]):
    cu = torch.tensor([0, 90, 90, 131])
    q, k, v, g = (torch.randn(131, H, d, dtype=torch.float64) for d in (8, 8, 12, 12))
    text = "a0:i[b]; where(and(ge(q_idx,kv_idx),lt(kv_idx,a0)),silu(s),0.0)"
    call = (q, k, v, [torch.tensor([20, 5, 41])], [], text)
    found = forward_op(*call, cu, cu, 90, 90)
    torch.testing.assert_close(found, torch.ops.gdpa.attention(*call, "", cu, cu, 90, 90))
    assert sum(multiplied) < 0.6 * H * (90 * 90 + 41 * 41)
    needs = [True, True, True, False]
    asked = torch.ops.gdpa.attention_backward(g, *call, needs, "", cu, cu, 90, 90)
    for grad, other in zip(backward_op(g, *call, needs, cu, cu, 90, 90), asked):
        torch.testing.assert_close(grad, other)


@pytest.mark.parametrize("threads", [1, 4])  # blocks of one head of one sample, or of several
def test_random_masks(threads: int, monkeypatch: pytest.MonkeyPatch, multiplied: list[int]):
    """Programs of `tests.mask_grammar`, every gradient, against the reference."""
    monkeypatch.setattr(cpu_blocks, "MAX_THREADS", threads)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    b, h, n, m = 2, 3, 40, 36
    q, k, v, g = (torch.randn(b, h, s, d, dtype=torch.float64) for s, d in
                  ((n, 4), (m, 4), (m, 5), (n, 5)))  # fmt: skip
    everything = 0
    for seed in range(60):
        _, _, weight = mask_grammar.Draw(seed, m).program()
        text = str(ScoreMod(weight, mask_grammar.AUX))
        made = torch.Generator().manual_seed(seed)
        count = lambda *shape: torch.randint(0, 9, shape, generator=made)
        aux = [
            count(b) * 4, count(h) * 4, count(b, n).cumsum(1), count(b, m).cumsum(1) < 100,
            count(b) < 4, torch.randn(h, generator=made), torch.randn(n, m, generator=made),
        ]  # fmt: skip
        call = (q, k, v, aux, [n], text)
        wanted = torch.ops.gdpa.attention(*call, "")
        torch.testing.assert_close(forward_op(*call), wanted, equal_nan=True)
        for needs in ([True] * 3 + [False] * 7, [False] * 8 + [True] * 2, [True] + [False] * 9):
            asked = torch.ops.gdpa.attention_backward(g, *call, needs, "")
            for grad, other in zip(backward_op(g, *call, needs), asked):
                torch.testing.assert_close(grad, other, equal_nan=True)
        everything += b * h * n * m
    assert sum(multiplied) < 5 * everything  # of one S in the forward, S and dP three times
