"""The dimension algebra against tensors that hold their own positions."""

import itertools
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from gdpa_inductor.patterns.host.sizes import is_one
from gdpa_inductor.patterns.reading.frame import Space, broadcast, permuted
from gdpa_inductor.patterns.result import Refused
from gdpa_inductor.rejection import Code


def element(index, values) -> tuple[int, ...]:
    """The position that an index means when its atoms have `values`."""
    position = []
    for digits in index:
        number = 0
        for atom in digits:
            number = number * atom.size + values[atom]
        position.append(number)
    return tuple(position)


def agree(space: Space, source: torch.Tensor, at, result: torch.Tensor, index) -> None:
    """Every element of `result` is the element of `source` that the index into it says."""
    index, at = space.resolve_index(index), space.resolve_index(at)
    variables = sorted({a for digits in index for a in digits}, key=lambda a: a.number)
    for numbers in itertools.product(*(range(a.size) for a in variables)):
        values = dict(zip(variables, numbers, strict=True))
        assert result[element(index, values)] == source[element(at, values)]


RESHAPES = [
    ((6, 5), (2, 3, 5)),
    ((2, 3, 5), (6, 5)),
    ((4, 6), (2, 2, 6)),
    ((4, 6), (2, 12)),
    ((12,), (2, 1, 3, 2)),
    ((1, 8, 1), (2, 2, 2)),
    ((2, 6, 5), (4, 3, 5)),
    ((3, 4), (1, 12, 1)),
    ((2, 3, 4), (2, 3, 4)),
]


@pytest.mark.parametrize(("old", "new"), RESHAPES)
def test_regroup_is_reshape(old, new):
    space, source = Space(), torch.arange(math.prod(old)).reshape(old)
    index = tuple(space.fresh(size) for size in new)
    agree(space, source, space.regroup(index, old), source.reshape(new), index)


def test_regroup_refuses_what_does_not_divide():
    space = Space()
    with pytest.raises(Refused) as caught:
        space.regroup((space.fresh(4), space.fresh(6)), (6, 4))
    assert caught.value.code is Code.LAYOUT


def test_a_split_holds_everywhere():
    space = Space()
    index = (space.fresh(6), space.fresh(5))
    assert len(space.resolve(index[0])) == 1
    space.regroup(index, (2, 3, 5))
    assert [a.size for a in space.resolve(index[0])] == [2, 3]
    assert not space.is_whole(space.resolve(index[0])[:1])
    assert space.is_whole((*space.resolve(index[0]), *index[1]))


def test_two_views_that_cut_one_variable_differently():
    """[12] as [2, 6], then as [4, 3]: the common refinement is [2, 2, 3]."""
    space = Space()
    index = (space.fresh(12),)
    space.regroup(index, (2, 6))
    space.regroup(index, (4, 3))
    assert [a.size for a in space.resolve(index[0])] == [2, 2, 3]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_permuted_is_permute(order):
    space, source = Space(), torch.arange(24).reshape(2, 3, 4)
    result = source.permute(order)
    index = tuple(space.fresh(size) for size in result.shape)
    agree(space, source, permuted(index, order), result, index)


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (4,), (), (1, 3, 1), (2, 1, 4), (1, 4)])
def test_broadcast_is_expand(shape):
    space, source = Space(), torch.arange(math.prod(shape)).reshape(shape)
    index = tuple(space.fresh(size) for size in (2, 3, 4))
    agree(space, source, broadcast(index, (2, 3, 4), shape), source.expand(2, 3, 4), index)


def test_dims_of_size_one_are_nothing():
    space = Space()
    assert space.fresh(1) == ()
    assert is_one(1) and not is_one(2)
    rows = space.fresh(5)
    assert space.regroup((rows, ()), (1, 5, 1)) == ((), rows, ())


def symbols(*hints: int) -> list[torch.SymInt]:
    """Backed sizes of different values, none of which is known."""
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(hints))
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return list(mode.from_tensor(torch.empty(hints), symbolic_context=context).shape)


def test_symbolic_sizes_divide_without_a_guard():
    b, n = symbols(6, 7)
    env = b.node.shape_env
    space = Space()
    index = (space.fresh(b * n), space.fresh(4))
    at = space.regroup(index, (b, n, 4))
    assert [len(digits) for digits in at] == [1, 1, 1]
    merged = space.regroup(at, (b * n, 4))
    assert merged == space.resolve_index(index)
    with pytest.raises(Refused):
        space.regroup((space.fresh(b),), (n,))
    assert not env.guards and not env.replacements


def test_a_symbolic_size_that_may_be_one_does_not_broadcast_silently():
    b, n = symbols(6, 7)
    space = Space()
    with pytest.raises(Refused):
        broadcast((space.fresh(b),), (b,), (n,))
