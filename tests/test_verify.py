"""verify: copies of inputs stand to each other as the inputs do, and only a difference raises."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa_inductor import GDPAError, verify
from gdpa_inductor.patterns import Result

pytestmark = pytest.mark.usefixtures("no_cpu_cost_model")
SHAPE = (2, 2, 12, 16)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.silu(q @ k.mT) @ v


def writing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q.mul_(2)
    return attend(q, k, v)


def padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(*(x.to_padded_tensor(0.0).transpose(1, 2) for x in (q, k, v)))


@torch.library.custom_op("gdpa_verify::only_fp32", mutates_args=())
def only_fp32(x: Tensor) -> Tensor:
    assert x.dtype == torch.float32
    return {torch.float32: x * 2}[x.dtype]


@only_fp32.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def plain() -> list[Tensor]:
    return list(torch.randn(3, *SHAPE))


def split() -> list[Tensor]:
    return list(torch.randn(2, 2, 12, 48).chunk(3, -1))


def expanded() -> list[Tensor]:
    return [torch.randn(1, 2, 12, 16).expand(SHAPE), *plain()[1:]]


def aliases() -> list[Tensor]:
    base = torch.randn(SHAPE)
    return [base, base[:, :, :], torch.randn(SHAPE)]


def overlapping() -> list[Tensor]:
    base = torch.randn(2, 2, 15, 16)
    return [base[:, :, :12], base[:, :, 3:], torch.randn(SHAPE)]


def activation() -> list[Tensor]:
    return [torch.randn(SHAPE, requires_grad=True) * 1.0, *plain()[1:]]


def views_with_gradients() -> list[Tensor]:
    return list((torch.randn(2, 2, 12, 48, requires_grad=True) * 1.0).chunk(3, -1))


def nested() -> list[Tensor]:
    offsets = torch.tensor([0, 3, 10])
    return [torch.nested.nested_tensor_from_jagged(torch.randn(10, 2, 16), offsets) for _ in "qkv"]


FORMS: dict[str, tuple[Callable[..., Tensor], Callable[[], list[Tensor]]]] = {
    "plain": (attend, plain),
    "split": (attend, split),
    "expanded": (attend, expanded),
    "two names of one tensor": (attend, lambda: [plain()[0]] * 3),
    "aliases, one written": (writing, aliases),
    "overlapping, one written": (writing, overlapping),
    "an activation, written": (writing, activation),
    "views with gradients": (attend, views_with_gradients),
    "nested": (padded, nested),
    "an operator for fp32 only": (lambda q, k, v: attend(only_fp32(q), k, v), plain),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_right_graph_is_compared_and_passes(name: str, caplog, monkeypatch) -> None:
    function, make = FORMS[name]
    compared = []
    difference = verify.difference
    note = lambda *arguments: compared.append(difference(*arguments)) or compared[-1]
    monkeypatch.setattr(verify, "difference", note)
    torch._dynamo.reset()
    torch.manual_seed(0)
    wanted = function(*make())
    torch.manual_seed(0)
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        options = {"gdpa.verify": True, "gdpa.expect": 1, "gdpa.profit": False}
        actual = torch.compile(function, backend="gdpa", options=options)(*make())
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)
    assert compared == [""]
    assert [r for r in caplog.records if r.name == "gdpa_inductor"] == []


def off_by_one_row(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def wrong(*inputs: Tensor) -> Tensor:
        out = function(*inputs)
        return torch.cat([out[:, :, 1:], out[:, :, :1]], 2)

    return wrong


def without_its_gradient(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda q, k, v: function(q, k.detach(), v)


@pytest.mark.parametrize("name", FORMS)
def test_a_wrong_graph_is_told(name: str) -> None:
    function, make = FORMS[name]
    wrong = off_by_one_row(function)
    run = verify.verified(wrong, function, Result())
    with pytest.raises(GDPAError, match=r"gdpa\.verify: output 0 is off by"):
        run(*make())


@pytest.mark.parametrize("make", [views_with_gradients, activation])
def test_a_missing_gradient_is_told(make: Callable[[], list[Tensor]]) -> None:
    inputs = [x if x.requires_grad else x.requires_grad_() for x in make()]
    run = verify.verified(without_its_gradient(attend), attend, Result())
    with pytest.raises(GDPAError, match=r"gdpa\.verify: the gradient of .*input \d is off by"):
        run(*inputs)


def without_gradients(*inputs: Tensor) -> Tensor:
    return attend(*(x.detach() for x in inputs))


@pytest.mark.parametrize(
    "wrong, text",
    [
        (without_gradients, "the gradient of .* is off by"),
        (lambda *x: (), "there are 6 outputs, inputs and gradients, not 7"),
    ],
    ids=["no gradient at all", "one output less"],
)
def test_what_is_missing_is_told_at_every_call(wrong: Callable, text: str) -> None:
    inputs = [x.requires_grad_() for x in plain()]
    run = verify.verified(wrong, attend, Result())
    for _ in range(2):
        with pytest.raises(GDPAError, match=rf"gdpa\.verify: {text}"):
            run(*inputs)


def test_a_missing_write_is_told() -> None:
    run = verify.verified(lambda q, k, v: attend(q * 2, k, v), writing, Result())
    with pytest.raises(GDPAError, match=r"gdpa\.verify: input 0, as the graph left it, is off by"):
        run(*plain())


@pytest.mark.parametrize("make", [split, aliases, overlapping, activation, views_with_gradients])
def test_copies_stand_to_each_other_as_the_inputs(make: Callable[[], list[Tensor]]) -> None:
    inputs = make()
    copies = verify._Copies(None)
    duplicates = [copies.of(x, "input") for x in inputs]
    for x, y in zip(inputs, duplicates, strict=True):
        assert torch.equal(x, y) and x.stride() == y.stride()
        assert x.storage_offset() == y.storage_offset()
        assert (x.requires_grad, x.is_leaf) == (y.requires_grad, y.is_leaf)
        assert x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()
    pairs = lambda tensors: itertools.product(
        [x.untyped_storage().data_ptr() for x in tensors], repeat=2
    )
    shared = [[a == b for a, b in pairs(tensors)] for tensors in (inputs, duplicates)]
    assert shared[0] == shared[1]


def test_what_cannot_be_run_on_copies_is_not_compared(caplog) -> None:
    """The model runs all the same."""
    calls = []

    def once(*inputs: Tensor) -> Tensor:
        calls.append(inputs)
        if len(calls) == 1:
            raise KeyError("no table")
        return attend(*inputs)

    inputs = plain()
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        out = verify.verified(once, attend, Result())(*inputs)
    assert torch.equal(out, attend(*inputs))
    (record,) = caplog.records
    assert "not compared" in record.getMessage() and "KeyError" in record.getMessage()


def in_two_dtypes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores in 16 bits, values and output in fp32: fp64 inputs need fp64 casts."""
    s = q @ k.mT
    return (s * 0.5 * (1 + torch.tanh(s))).float() @ v.float()


def test_scores_of_16_bits_beside_values_of_32_are_held_against_fp64() -> None:
    inputs = [x.bfloat16() for x in plain()]
    exact = verify._exact(in_two_dtypes, inputs, verify._results(in_two_dtypes, inputs)[0])
    assert all(x is not None and x.dtype == torch.float64 for x in exact)

    def better(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = q.float() @ k.float().mT
        return (s * 0.5 * (1 + torch.tanh(s))) @ v.float()

    assert verify.difference(better, in_two_dtypes, inputs) == ""
    wrong = lambda *x: better(*x) * 1.1
    assert "output 0 is off" in verify.difference(wrong, in_two_dtypes, inputs)


FINITE, NAN, INF = (torch.tensor([1.0, x]) for x in (2.0, float("nan"), float("inf")))


@pytest.mark.parametrize("fused, eager, exact, fault", [
    (NAN, FINITE, FINITE, True), (INF, FINITE, FINITE, True), (NAN, INF, INF, True),
    (NAN, FINITE, None, True), (INF, FINITE, None, True),
    (FINITE, NAN, NAN, False), (FINITE, INF, INF, False), (INF, NAN, NAN, False),
    (INF, FINITE, INF, False), (NAN, FINITE, NAN, False), (NAN, NAN, NAN, False),
])  # fmt: skip
def test_nan_and_infinity_come_from_the_model(fused, eager, exact, fault: bool) -> None:
    """From eager or from fp64. What a mask or a slope by hand makes NaN in eager need not be."""
    text = verify.breach(fused, eager, None if exact is None else exact.double(), 1e-7)
    assert ("has NaN or infinity" in text) == fault and bool(text) == fault


def test_a_comparison_that_was_interrupted_is_made_again(monkeypatch) -> None:
    """What cannot be run on copies is not tried again."""
    raised = [KeyboardInterrupt, MemoryError]

    def difference(*_):
        raise raised.pop(0)

    monkeypatch.setattr(verify, "difference", difference)
    run = verify.verified(attend, attend, Result())
    inputs = plain()
    with pytest.raises(KeyboardInterrupt):
        run(*inputs)
    for _ in range(2):
        torch.testing.assert_close(run(*inputs), attend(*inputs))
    assert raised == []
