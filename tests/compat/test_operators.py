"""What `_compat.operators` reads from the dispatcher's operators, as they are in graphs."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gdpa_inductor._compat import operators

aten = torch.ops.aten


def test_OpOverload():
    traced = torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.add(1))(torch.ones(2))
    (called,) = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert isinstance(called, operators.OpOverload) and called is aten.add.Tensor


def test_OpOverloadPacket():
    assert isinstance(aten.add, operators.OpOverloadPacket)
    assert isinstance(torch.ops.gdpa.attention, operators.OpOverloadPacket)
    assert not isinstance(aten.add.Tensor, operators.OpOverloadPacket)


def test_HigherOrderOperator():
    assert isinstance(torch.ops.higher_order.cond, operators.HigherOrderOperator)
    assert not isinstance(aten.add.Tensor, operators.HigherOrderOperator)


def test_TorchDispatchMode():
    """It sees each operator once, also those of a function that takes others apart."""
    seen = []

    class Sees(operators.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Sees():
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3))
    torch.ones(2)
    assert seen == [aten.ones.default, aten.ones.default, aten.t.default, aten.mm.default]


@pytest.fixture
def library():
    with torch.library._scoped_library("gdpa_compat", "FRAGMENT") as fragment:
        yield fragment


def test_strided_view():
    base = torch.arange(24.0, requires_grad=True)
    view = operators.strided_view(base, (2, 3), (1, 4), 5)
    assert torch.equal(view, base.detach().as_strided((2, 3), (1, 4), 5))
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert not view.requires_grad
    of_view = operators.strided_view(base.detach()[4:], (2,), (3,), 1)
    assert of_view.tolist() == [5.0, 8.0]  # the offset counts from the base's first element


def test_define(library):
    schema = "shortened(Tensor x, SymInt by) -> Tensor"
    run, fake = lambda x, by: x[by:].clone(), lambda x, by: x.new_empty(x.shape[0] - by)
    backward = lambda ctx, grad: (torch.nn.functional.pad(grad, (ctx.by, 0)), None)

    def save(ctx, inputs, output):
        ctx.by = inputs[1]

    operators.define(library, schema, run, fake, "CPU", backward=backward, save=save)
    shortened = torch.ops.gdpa_compat.shortened.default
    with FakeTensorMode():
        assert shortened(torch.empty(7), 2).shape == (5,)
    compiled = torch.compile(lambda x: shortened(x, 2), backend="aot_eager", dynamic=True)
    assert torch.equal(compiled(torch.arange(7.0)), torch.arange(2.0, 7.0))
    x = torch.ones(7, requires_grad=True)
    shortened(x, 2).sum().backward()
    assert x.grad.tolist() == [0, 0, 1, 1, 1, 1, 1]


def test_op_name():
    assert operators.op_name(aten.masked_fill_.Scalar) == "masked_fill_"
    assert operators.op_name(aten.add) == "add" and operators.op_name(torch.relu) == "relu"
    assert operators.op_name(torch.ops.gdpa.attention.default) == "attention"
    assert operators.op_name("view") == "view"


def test_schema_of():
    schema = operators.schema_of(aten.add_.Tensor)
    assert [argument.name for argument in schema.arguments] == ["self", "other", "alpha"]
    aliased = [argument.alias_info is not None for argument in schema.arguments]
    assert aliased == [True, False, False]
    assert schema.arguments[0].alias_info.is_write and len(schema.returns) == 1


def test_qualified_name():
    assert operators.qualified_name(aten.add) == "aten::add"
    assert operators.qualified_name(torch.ops.gdpa.attention) == "gdpa::attention"
    assert operators.qualified_name(torch.relu) == "" == operators.qualified_name("view")


def test_overload_name():
    assert operators.overload_name(aten.add.Tensor) == "Tensor"
    assert operators.overload_name(aten.relu.default) == "default"
    assert operators.overload_name(torch.relu) == ""


def test_aten_overloads():
    assert aten.masked_fill.Tensor in operators.aten_overloads("masked_fill")
    assert operators.aten_overloads("no_such_function") == ()
    assert operators.aten_overloads("__eq__") == () == operators.aten_overloads("not a name")


def test_is_composite(library):
    assert operators.is_composite(aten.matmul.default)
    assert not operators.is_composite(aten.mm.default)
    assert not operators.is_composite(aten.matmul) and not operators.is_composite(torch.matmul)
    library.define("composed(Tensor x) -> Tensor")
    library.impl("composed", lambda x: x * 2, "CompositeImplicitAutograd")
    assert not operators.is_composite(torch.ops.gdpa_compat.composed.default)


def test_has_autocast():
    assert operators.has_autocast(aten.matmul.default, "cpu")
    assert operators.has_autocast(aten.matmul.default, "cuda")
    assert not operators.has_autocast(aten.einsum.default, "cpu")
    assert not operators.has_autocast(aten.mT.default, "cuda")


def test_writes_first():
    assert operators.writes_first(aten.add_.Tensor) and operators.writes_first(aten.copy_.default)
    assert not operators.writes_first(aten.add.Tensor)
    assert not operators.writes_first(aten.view.default)  # it aliases, and writes nothing
    assert not operators.writes_first(aten.ones.default)  # the first is no tensor


RRELU = aten.rrelu_with_noise.default


def test_is_random():
    for op in (aten.bernoulli.p, aten.native_dropout.default, aten.rand_like.default, RRELU):
        assert operators.is_random(op)
    assert not operators.is_random(aten.add.Tensor) and not operators.is_random(torch.rand)
    assert not operators.is_random(torch.relu) and not operators.is_random("relu")


def test_draws():
    assert operators.draws(aten.bernoulli.p, {}) and not operators.draws(aten.add.Tensor, {})
    assert operators.draws(RRELU, {"training": True})
    assert not operators.draws(RRELU, {"training": False})


def test_is_idle():
    """rrelu in evaluation is of a tag that says it draws, and leaves the generator alone."""
    before, noise = torch.get_rng_state(), torch.empty(4)
    RRELU(torch.ones(4), noise, 0.1, 0.3, False)
    assert torch.equal(torch.get_rng_state(), before)
    assert operators.is_idle(RRELU, {"training": False})
    assert not operators.is_idle(RRELU, {"training": True})
    assert not operators.is_idle(aten.bernoulli.p, {"training": False})


def test_is_pointwise():
    for name in ("relu", "add", "where", "masked_fill", "tanh"):
        assert operators.is_pointwise(name)
    for name in ("mm", "sum", "softmax", "no_such_function"):
        assert not operators.is_pointwise(name)
