"""The evaluator against torch: elements of tensors that were viewed, written and looked up."""

from collections.abc import Callable

import pytest
import torch

from gdpa_inductor._compat import subclasses
from gdpa_inductor.judge.elements import Evaluator, _rounded
from gdpa_inductor.judge.record import Log, Recorder
from gdpa_inductor.judge.samples import COUNT, Lanes


class RealLanes(Lanes):
    """Lanes whose roots are real tensors: an element is what lies at the address."""

    def __init__(self, storages: dict[int, torch.Tensor]) -> None:
        super().__init__(0)
        self.storages = storages

    def draw(self, key, address, dtype):
        if key[1] not in self.storages:  # what `torch.empty` made: it is never seen
            return torch.full(address.shape, -999, dtype=dtype)
        return self.storages[key[1]].flatten()[address]


def slices(x, i):
    y = x.clone()
    y[1:, ::2] = -1.0
    y.t().mul_(2.0)
    y.view(-1)[3:9].add_(0.5)
    return y.mT.reshape(-1, 2) + 1


def aliases(x, i):
    y = x * 1
    y.data.masked_fill_(y > 0, 0.0)
    y.detach()[0].fill_(3.0)
    z = y.expand(2, 4, 6).permute(2, 0, 1)
    torch._foreach_add_([y], 1.0)
    return z * torch.arange(4)


def out_and_diagonal(x, i):
    y = torch.empty_like(x)
    torch.mul(x, 2.0, out=y)
    y.view(-1)[::7].fill_(0.25)
    return torch.cat([y, x.flip(0)], 1)[:, 3:]


def lookups(x, i):
    return x[i.long() % 4] + x.index_select(0, i.long() % 4) * x.gather(1, i[:, None].long() % 6)


def masks(x, i):
    apart = torch.arange(4)[:, None] - torch.arange(6)
    return torch.where((apart >= 0) & (apart < 3), x, torch.full_like(x, -9.0)).tril(1)


def narrow_integers(x, i):
    a = torch.arange(120, 132, dtype=torch.uint8).view(2, 6)
    wrapped = (a * a).long() - (a + 140).to(torch.int8).long() * (i[:2, None] + 2**62)
    return wrapped // -3 % 7


def pads(x, i):
    y = torch.nn.functional.pad(x, (1, 2, 0, 1), value=7.0)
    return torch.stack([y, y * 2], 1).repeat(1, 1, 2).select(1, 1)


def promoted(x, i):
    half = x.bfloat16()
    return half * torch.tensor(1.75, dtype=torch.float64) + torch.tensor(2) * (half < 0.3)


def buckets(x, i):
    """Of NaN too, in boundaries with ties, of which each row may have its own."""
    bounds = torch.arange(-1, 3).clamp(max=1).float()
    x = torch.where(x > 1.5, torch.nan, x.round())
    rows = bounds * (i[:, None] + 1)
    counts = torch.bucketize(x, bounds) * 10 + torch.bucketize(x, bounds, right=True)
    counts = counts * 10 + torch.searchsorted(rows, x, side="right")
    return counts * 10 + torch.searchsorted(bounds, x, out_int32=True)


def copies(x, i):
    y = torch.zeros(4, 6, dtype=torch.bfloat16)
    y[1:].copy_(x[0])
    return torch.ops.aten.copy(y, x.flip(0)) * y


def rolls(x, i):
    return (
        x.roll((1, -2), (1, 0))
        + x.roll(-4) * x.view(-1).roll(5).view(4, 6) * x.repeat(1, 2)[:, 3:9]
    )


PROGRAMS = [
    slices, rolls, aliases, out_and_diagonal, lookups, masks, narrow_integers, pads, promoted,
    buckets, copies,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_elements_are_those_of_the_real_tensor(program: Callable):
    x, i = torch.randn(4, 6), torch.arange(4)
    expected = program(x.clone(), i.clone())
    mode, log = subclasses.own_fake_mode(), Log()
    with mode, torch.no_grad():
        fakes = [torch.empty(4, 6), torch.empty(4, dtype=torch.int64)]
        with Recorder(log):
            places = [log.ref(t) for t in fakes]
            end = log.ref(program(*fakes))
    lanes = RealLanes({place.storage: t for place, t in zip(places, (x, i))})
    generator = torch.Generator().manual_seed(0)
    index = tuple(torch.randint(n, (COUNT,), generator=generator) for n in expected.shape)
    evaluator = Evaluator(log, lanes, {})
    elements = evaluator.element(end, log.now, index)
    assert bool(evaluator.valid.all())
    torch.testing.assert_close(elements, expected[index], rtol=0, atol=0, equal_nan=True)


def test_silent_writers_are_known():
    """Operations that change an operand which their schema declares to be read only."""
    from gdpa_inductor.judge.record import SILENT_WRITERS

    x, mean, var = torch.randn(3, 4), torch.zeros(4), torch.ones(4)
    torch.ops.aten.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)
    assert bool((mean != 0).any()) and bool((var != 1).any())
    schema = torch.ops.aten.native_batch_norm.default._schema
    declared = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
    assert not declared & set(SILENT_WRITERS["native_batch_norm"])
    names = {a.name for a in schema.arguments}
    assert set(SILENT_WRITERS["native_batch_norm"]) <= names


def test_writes_of_a_schema_are_seen():
    """In-place, out=, foreach and writes through `.data` bump the storage that is written."""
    mode, log = subclasses.own_fake_mode(), Log()
    with mode:
        x = torch.empty(3, 3)
        with Recorder(log):
            place = log.ref(x)
            writes = (
                lambda: x.add_(1),
                lambda: torch.add(x, 1, out=x),
                lambda: torch._foreach_mul_([x], 2.0),
                lambda: x.data.zero_(),
                lambda: x.detach().view(-1)[:2].fill_(1.0),
                lambda: x.copy_(torch.ones(3)),
                lambda: torch.nn.functional.relu(x, inplace=True),
            )
            for number, write in enumerate(writes, 1):
                write()
                assert len(log.writes[place.storage]) == number


def test_what_is_rounded_keeps_its_sign_and_its_gradient():
    numbers = [0.0, -0.0, 1e-60, -1e-60, 0.1, -0.1, 1e300, -1e300, torch.inf, -torch.inf, torch.nan]
    wide = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    rounded = _rounded(wide, torch.float32)
    expected = wide.detach().float().double()
    torch.testing.assert_close(rounded, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(rounded.signbit()[:-1], expected.signbit()[:-1])
    rounded[:-1].sum().backward()
    assert torch.equal(wide.grad[:-1], torch.ones_like(wide.grad[:-1]))
