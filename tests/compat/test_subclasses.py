"""What `_compat.subclasses` knows of fakes, nested tensors and other wrappers."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from gdpa_inductor._compat import subclasses
from gdpa_inductor._compat.operators import TorchDispatchMode


@pytest.fixture
def mode() -> FakeTensorMode:
    return FakeTensorMode()


@pytest.fixture
def nested() -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(torch.randn(7, 4), torch.tensor([0, 3, 7]))


class Refuses(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was dispatched")


class Own(torch.Tensor):
    """A class of the user's."""


def test_is_fake(mode):
    parameter = mode.from_tensor(torch.nn.Parameter(torch.ones(2)))
    assert isinstance(parameter, torch.nn.Parameter)
    for fake in (mode.from_tensor(torch.ones(2)), parameter):
        assert subclasses.is_fake(fake)
    for other in (torch.ones(2), torch.nn.Parameter(torch.ones(2)), torch.ones(2).as_subclass(Own)):
        assert not subclasses.is_fake(other)


def test_class_of_user(mode, nested):
    own = torch.ones(2).as_subclass(Own)
    assert subclasses.class_of_user(own) is Own
    assert subclasses.class_of_user(torch.nn.Parameter(own)) is Own
    plain = torch.nn.Parameter(torch.ones(2))
    for other in (plain, nested, mode.from_tensor(torch.ones(2)), TwoTensor(plain, plain), 3, None):
        assert subclasses.class_of_user(other) is None


def test_fake_mode_of(mode):
    fake = mode.from_tensor(torch.ones(2))
    assert subclasses.fake_mode_of(fake) is mode and subclasses.fake_mode_of(fake * 2) is mode


def test_own_fake_mode():
    """Sizes that follow from elements get symbols, those of inputs are numbers."""
    mode = subclasses.own_fake_mode()
    with mode:
        x = mode.from_tensor(torch.ones(4))
        assert type(x.shape[0]) is int
        assert isinstance(x.nonzero().shape[0], torch.SymInt)
        assert isinstance(x.long().sum().item(), torch.SymInt)
    assert subclasses.own_fake_mode().shape_env is not mode.shape_env


def test_device_of(mode):
    fake = mode.from_tensor(torch.ones(2))
    with mode:
        cuda = torch.empty(2, device="cuda")
    with Refuses():
        assert subclasses.device_of(fake) == torch.device("cpu")
        assert subclasses.device_of(cuda) == torch.device("cuda", 0)
    assert subclasses.device_of(torch.ones(2)) == torch.device("cpu")


def test_metadata_of(mode):
    fake = mode.from_tensor(torch.ones(2))
    with Refuses():
        assert subclasses.metadata_of(torch.ops.prim.device.default, fake) == torch.device("cpu")
    layout = torch.ops.prim.layout.default
    assert subclasses.metadata_of(layout, fake) == layout(torch.ones(2))


def test_constant_of(mode):
    with mode:
        known = torch.tensor(3)
        unknown = torch.ones(()).mul(2)
    assert subclasses.constant_of(known) == 3
    assert subclasses.constant_of(unknown) is None and subclasses.constant_of(7) is None
    assert subclasses.constant_of(mode.from_tensor(torch.ones(2))) is None


def test_element_of(mode):
    real = torch.tensor(2.5)
    with mode, Refuses():
        assert subclasses.element_of(real) == 2.5


def test_is_compact_nested(nested):
    assert subclasses.is_compact_nested(nested)
    gaps = torch.nested.nested_tensor_from_jagged(
        torch.randn(7, 4), torch.tensor([0, 3, 7]), torch.tensor([2, 4])
    )
    padded = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
    for other in (gaps, nested.transpose(1, 2), padded, torch.ones(2, 3)):
        assert not subclasses.is_compact_nested(other)


def test_values_of(nested):
    assert subclasses.values_of(nested) is nested._values
    assert torch.equal(subclasses.values_of(nested), nested.values())
    padded, plain = torch.nested.nested_tensor([torch.ones(2)]), torch.ones(2)
    assert subclasses.values_of(plain) is plain and subclasses.values_of(padded) is padded


def test_offsets_of(nested):
    assert subclasses.offsets_of(nested) is nested.offsets()
    assert subclasses.offsets_of(torch.ones(2, 3)) is None


def test_longest_of():
    values, offsets = torch.randn(7, 4), torch.tensor([0, 3, 7])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=5)
    assert subclasses.longest_of(nested) == 5
    silent = torch.nested.nested_tensor_from_jagged(values, offsets)
    strided = torch.nested.nested_tensor([torch.ones(2)])
    assert subclasses.longest_of(silent) is None and subclasses.longest_of(strided) is None


def test_read_longest():
    nested = torch.nested.nested_tensor_from_jagged(torch.randn(7, 4), torch.tensor([0, 3, 3, 7]))
    assert subclasses.read_longest(nested) == subclasses.longest_of(nested) == 4
    none = torch.nested.nested_tensor_from_jagged(torch.randn(0, 4), torch.tensor([0]))
    assert subclasses.read_longest(none) == 0


def test_strided_parts(nested):
    plain = torch.eye(4)
    assert subclasses.strided_parts(plain)[0] is plain
    values, offsets = subclasses.strided_parts(nested)
    assert torch.equal(values, nested.values()) and torch.equal(offsets, nested.offsets())
    padded = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
    assert [part.tolist() for part in subclasses.strided_parts(padded)] == [[1, 1], [0, 0, 0]]
    twice = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (4,))
    assert not twice.is_coalesced()
    assert [part.tolist() for part in subclasses.strided_parts(twice)] == [[2, 3], [[1, 1]]]
    for layout, names in subclasses._COMPRESSED.items():
        blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
        parts = subclasses.strided_parts(plain.to_sparse(layout=layout, **blocks))
        assert len(parts) == 1 + len(names)
        assert all(part.layout == torch.strided for part in parts)
        parts[0].zero_()  # these are the tensor's own memory
    assert subclasses.strided_parts(plain.to_mkldnn()) == []


def test_inner_tensors(nested):
    tensors = subclasses.inner_tensors(nested)
    assert any(x is nested._values for x in tensors) and any(x is nested._offsets for x in tensors)
    a, b = torch.ones(2), torch.zeros(2)
    assert [x is y for x, y in zip(subclasses.inner_tensors(TwoTensor(a, b)), (a, b))] == [True] * 2
    assert subclasses.inner_tensors(a) == []


def test_is_foreign(nested):
    assert subclasses.is_foreign(TwoTensor(torch.ones(2), torch.ones(2)))
    for other in (nested, torch.ones(2), torch.ones(2).as_subclass(Own), 3):
        assert not subclasses.is_foreign(other)


def test_wrapped_by(nested):
    a, b = torch.ones(2), torch.zeros(2)
    assert [id(x) for x in subclasses.wrapped_by(TwoTensor(a, b))] == [id(a), id(b)]
    assert subclasses.wrapped_by(nested) == [] == subclasses.wrapped_by(a)


def test_parts_of(nested):
    a, b = torch.ones(2), torch.zeros(2)
    inner = TwoTensor(a, b)
    parts = subclasses.parts_of(TwoTensor(inner, inner))
    assert [[id(x) for x in each] for each in parts] == [[id(a), id(b)]] * 2
    assert any(x is nested._values for x in subclasses.parts_of(nested))
    assert subclasses.parts_of(a) is a and subclasses.parts_of("text") == "text"


def test_holds_subclass(mode, nested):
    """Of the types that a dispatch mode is told."""
    seen = []

    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(subclasses.holds_subclass(types))
            return func(*args, **(kwargs or {}))

    def answers(tensor: torch.Tensor) -> set[bool]:
        seen.clear()
        with Looks():
            tensor.sin()
        return set(seen)

    parameter = torch.nn.Parameter(torch.ones(2))
    with mode:
        fakes = mode.from_tensor(parameter), mode.from_tensor(torch.ones(2))
        assert [answers(fake) for fake in fakes] == [{False}] * 2
    assert answers(parameter) == {False} == answers(torch.nn.Buffer(torch.ones(2)))
    assert True in answers(nested) and answers(TwoTensor(torch.ones(2), torch.ones(2))) >= {True}


def test_storage_address(mode):
    x, y = torch.ones(4), torch.ones(4)
    address = lambda x: subclasses.storage_address(x.untyped_storage())
    assert address(x) == address(x[1:]) == address(x.view(2, 2)) != address(y)
    fake, other = mode.from_tensor(x), mode.from_tensor(y)
    assert address(fake) == address(fake[1:]) != address(other)
