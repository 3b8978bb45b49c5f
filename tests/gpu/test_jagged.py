"""Jagged attention on a GPU: what a sequence gives does not depend on its place or its neighbours,
equal bits in every run, CUDA graphs over batches of other lengths.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gpu import checks
from tests.jagged import pad, unpad

pytestmark = pytest.mark.cuda
LONGEST, HEADS, DIM, KEYS, BATCH = 400, 4, 128, 192, 240


def gelu(score: Tensor) -> Tensor:
    return F.gelu(score, approximate="tanh")


def causal(score: Tensor) -> Tensor:
    places = torch.arange(score.shape[-1], device=score.device)
    return torch.where(places[:, None] >= places, F.silu(score) / score.shape[-1], 0.0)


def attend(activation: Callable[[Tensor], Tensor], query, key, value, ends) -> Tensor:
    """Jagged queries; keys and values jagged alike or [B, KEYS, H, D]."""
    q, *both = (
        (pad(x, ends, LONGEST) if x.dim() == 3 else x).transpose(1, 2) for x in (query, key, value)
    )
    k, v = both
    out = activation(q @ k.mT * DIM**-0.5) @ v
    return unpad(out.transpose(1, 2), ends, query.shape[0])


def pooled(seeds, key, value, ends) -> Tensor:
    """Seeds [KEYS, H, D] that the batch shares, over jagged keys: [B, H, KEYS, D]."""
    k, v = (pad(x, ends, LONGEST).transpose(1, 2) for x in (key, value))
    return F.silu(seeds.transpose(0, 1) @ k.mT * DIM**-0.5) @ v


FORMULAS: dict[str, Callable[..., Tensor]] = {
    "gelu": lambda *inputs: attend(gelu, *inputs),
    "causal": lambda *inputs: attend(causal, *inputs),
    "short keys": lambda *inputs: attend(gelu, *inputs),
    "seeds": pooled,
}
# The sum dQ of seeds has the order of the batch. Under a mask Hopper's kernels add up a sequence's
# gradients in one of two orders, which follows from where its tiles are dealt.
ANYWHERE = {"seeds": {1}, "causal": {1, 2, 3}}
by_formula = pytest.mark.parametrize("name", FORMULAS)


def compiled(name: str, mode: str | None = None) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    return checks.compiled(FORMULAS[name], mode=mode, fullgraph=True)


def lengths(seed: int = 0) -> Tensor:
    """[BATCH], empty ones and whole ones among them; of every seed the same in another order."""
    results = torch.randint(0, LONGEST + 1, (BATCH,), generator=torch.Generator().manual_seed(0))
    results[:3] = torch.tensor([0, 1, LONGEST])
    return results[torch.randperm(BATCH, generator=torch.Generator().manual_seed(seed))]


def offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).cuda()


def operands(name: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    total = int(lengths().sum())
    jagged, short = (total, HEADS, DIM), (BATCH, KEYS, HEADS, DIM)
    shapes = {"seeds": (short[1:], jagged, jagged), "short keys": (jagged, short, short)}
    return [
        torch.randn(shape, generator=generator).bfloat16().cuda()
        for shape in shapes.get(name, (jagged,) * 3)
    ]


def step(function: Callable[..., Tensor], tensors: list[Tensor], ends: Tensor) -> list[Tensor]:
    """The output and the gradients of the tensors."""
    inputs = [t.detach().requires_grad_() for t in tensors]
    out = function(*inputs, ends)
    out.backward(torch.linspace(-1, 1, out.shape[-1], device="cuda").to(out.dtype).expand_as(out))
    return [out.detach().clone(), *(t.grad.clone() for t in inputs)]


def moved(x: Tensor, counts: Tensor, order: Tensor) -> Tensor:
    """The sequences of jagged values, or the samples of a batch, in another order."""
    if x.shape[0] == len(counts):
        return x[order.to(x.device)]
    parts = x.split(counts.tolist())
    return torch.cat([parts[i] for i in order.tolist()])


@by_formula
def test_a_permuted_batch_keeps_its_bits(name: str) -> None:
    counts, tensors, function = lengths(), operands(name), compiled(name)
    order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(7))
    shared = {1} if name == "seeds" else set()  # the seeds: not moved, and their gradient sums
    results = step(function, tensors, offsets(counts))
    inputs = [t if i in shared else moved(t, counts, order) for i, t in enumerate(tensors, 1)]
    again = step(function, inputs, offsets(counts[order]))
    for i, (before, after) in enumerate(zip(results, again, strict=True)):
        before = before if i in shared else moved(before, counts, order)
        if i in ANYWHERE.get(name, ()):
            torch.testing.assert_close(after.float(), before.float(), rtol=2e-2, atol=2e-2)
        else:
            assert torch.equal(before, after), i


@by_formula
def test_equal_bits_in_1000_runs(name: str) -> None:
    tensors, function, ends = operands(name), compiled(name), offsets(lengths())
    checks.check_bits(lambda: step(function, tensors, ends), 1000)


@by_formula
def test_cuda_graphs_over_other_lengths(name: str) -> None:
    """One recording serves batches of other lengths: they are read on the device."""
    plain = compiled(name)
    wanted = [step(plain, operands(name), offsets(lengths(seed))) for seed in range(5)]
    recorded = compiled(name, mode="reduce-overhead")
    for seed, want in enumerate(wanted):
        torch.compiler.cudagraph_mark_step_begin()
        results = step(recorded, operands(name), offsets(lengths(seed)))
        assert all(map(torch.equal, want, results))
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


def _sequences(results: list[Tensor], counts: Tensor) -> Iterator[tuple[int, list[Tensor]]]:
    split = [x if x.shape[0] == BATCH else x.split(counts.tolist()) for x in results]
    for b in range(BATCH):
        yield b, [x[b] for x in split]


@pytest.mark.parametrize("name", ["gelu", "causal", "short keys"])
def test_nan_stays_in_its_sequence(name: str) -> None:
    counts, tensors, function = lengths(), operands(name), compiled(name)
    ends = offsets(counts)
    clean = dict(_sequences(step(function, tensors, ends), counts))
    bad = int(counts.argmax())
    poisoned = [t.clone() for t in tensors]
    for t in poisoned:
        t[bad if t.shape[0] == BATCH else slice(int(ends[bad]), int(ends[bad + 1]))] = torch.nan
    for b, results in _sequences(step(function, poisoned, ends), counts):
        if b != bad:
            assert all(map(torch.equal, clean[b], results)), b
        else:
            assert all(x.isnan().any() for x in results)
