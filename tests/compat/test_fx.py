"""What `_compat.fx` makes of graphs, and knows of the calls that Dynamo and export write there."""

from collections.abc import Callable

import torch
import torch.utils.checkpoint
from torch._higher_order_ops.wrap import wrap
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gdpa_inductor._compat import fx, shapes
from gdpa_inductor._compat.operators import TorchDispatchMode, op_name

aten = torch.ops.aten


def captured(function: Callable, *inputs: torch.Tensor, dynamic: bool = False) -> torch.fx.Graph:
    """The graph of Dynamo, which owns a module."""
    graphs = []

    def backend(gm, _):
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)(*inputs)
    return graphs[0].graph


def calls(graph: torch.fx.Graph) -> list:
    return [node.target for node in graph.nodes if node.op == "call_function"]


def test_tree_flatten():
    leaves, spec = fx.tree_flatten({"a": [1, (2, None)], "b": torch.Size([3])})
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    assert leaves[:2] == [1, 2] and again["a"] == [1, (2, None)]


def test_tree_leaves():
    node = torch.fx.Graph().placeholder("x")
    assert fx.tree_leaves(((node, [1]), {"k": slice(2)})) == [node, 1, slice(2)]
    assert fx.tree_leaves(node) == [node]


def test_tree_map():
    doubled = fx.tree_map(lambda x: x * 2, [1, (2, {"k": 3})])
    assert doubled == [2, (4, {"k": 6})] and type(doubled[1]) is tuple


def test_counts():
    for target in (torch.tensor, "new_tensor"):
        first = (range(3),) if target is torch.tensor else (torch.ones(2), range(3))
        assert fx.counts(target, first)
        assert not fx.counts(target, (*first[:-1], [1, 2])) and not fx.counts(target, first[:-1])
    assert not fx.counts(torch.arange, (range(3),)) and not fx.counts("new_zeros", (1, range(3)))


def test_arange_of():
    like = torch.ones(2, dtype=torch.float64)
    target, args, options = fx.arange_of("new_tensor", (like, range(1, 9, 2)), {})
    actual = target(*args, **options)
    assert torch.equal(actual, like.new_tensor(range(1, 9, 2))) and actual.dtype == like.dtype
    target, args, options = fx.arange_of(torch.tensor, (range(3),), {"dtype": torch.int32})
    assert torch.equal(target(*args, **options), torch.tensor(range(3), dtype=torch.int32))


def fakes(*sizes: tuple[int, ...], dynamic: bool = False) -> list[torch.Tensor]:
    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None)
    return [mode.from_tensor(torch.empty(size), static_shapes=not dynamic) for size in sizes]


def test_trace_functional():
    """No in-place call, no composite and no gradient is left, nor a random operation that draws
    nothing. C++ composites trace with symbolic sizes, and comparisons leave no guard.
    """

    def function(x, y):
        assert x.shape[1] == y.shape[0]
        result = torch.matmul(x.requires_grad_(), y).mul_(2.0)
        result[0].add_(1.0)
        assert not result.requires_grad
        result = torch.nn.functional.rrelu(result)
        result = torch.nn.functional.rrelu(result, training=True).transpose_(0, 1)
        return torch.nn.functional.linear(result, x.mT).view(-1).unflatten(0, (-1, y.shape[0]))

    for dynamic in (False, True):
        x, y = fakes((5, 3), (3, 4), dynamic=dynamic)
        traced = fx.trace_functional(function, [x, y], x.fake_mode)
        assert not dynamic or not x.fake_mode.shape_env.guards
        names = [op_name(target) for target in calls(traced.graph)]
        assert names.count("mm") == 2 and not {"matmul", "linear"} & set(names)
        assert {"leaky_relu", "rrelu_with_noise_functional"} <= set(names)
        assert not [name for name in names if name.endswith("_")]
        output = traced.graph.output_node().args[0]
        assert [shapes.size_hint(size) for size in output.meta["val"].shape] == [4, 3]


def test_traced_so_far():
    x, y = fakes((2, 3), (3, 4))
    seen = []

    def function(x, y):
        seen.append(fx.traced_so_far())
        result = x @ y
        seen.append(fx.traced_so_far())
        result = torch.nn.functional.dropout(result)
        seen.append(fx.traced_so_far())
        return result

    fx.trace_functional(function, [x, y], x.fake_mode)
    first, product, random = seen
    assert aten.mm.default not in first.values() and aten.mm.default in product.values()
    new = [random[name] for name in random.keys() - product.keys()]
    assert any(torch.Tag.nondeterministic_seeded in getattr(op, "tags", ()) for op in new)
    assert fx.traced_so_far() == {}


def test_write_symbolic():
    (x,) = fakes((6, 7), dynamic=True)
    n, m = x.shape
    graph = torch.fx.Graph()
    nodes = {
        shapes.expression_of(size): graph.placeholder(f"s{i}") for i, size in enumerate((n, m))
    }
    sizes = (2 * n + m * n, (n + 1) // 2, n % m, torch.sym_max(n, m), 3 - n)
    written = [fx.write_symbolic(shapes.expression_of(size), nodes, graph) for size in sizes]
    graph.output(tuple(written))
    graph.lint()
    run = torch.fx.GraphModule(torch.nn.Module(), graph)
    assert run(6, 7) == (54, 3, 6, 7, -3) and run(9, 4) == (54, 5, 1, 9, -6)
    assert all(type(number) is int for number in run(6, 7))


def checkpointed(x):
    return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)


def test_value_of():
    """Dynamo's, else that of an exported graph."""
    node = torch.fx.Graph().placeholder("x")
    assert fx.value_of(node) is None
    node.meta["val"] = 1
    assert fx.value_of(node) == 1
    node.meta["example_value"] = 2
    assert fx.value_of(node) == 2


def test_body_of():
    graph = captured(checkpointed, torch.ones(2, requires_grad=True))
    (call,) = [node for node in graph.nodes if fx.has_plain_bodies(node.target)]
    body = fx.body_of(call.args[0])
    assert isinstance(body, torch.fx.GraphModule) and torch.sin in calls(body.graph)
    root = torch.nn.Module()
    root.weight, root.inner = torch.nn.Parameter(torch.ones(2)), torch.nn.Module()
    root.inner.body = body
    fetching = torch.fx.Graph(root)
    fetched = [fetching.get_attr(name) for name in ("inner.body", "weight")]
    fetching.output(tuple(fetched))
    nodes = list(torch.fx.GraphModule(root, fetching).graph.nodes)
    assert [fx.body_of(node) for node in nodes[:2]] == [body, None]
    assert fx.body_of(torch.fx.Graph().create_node("get_attr", "gone.body")) is None


def no_grad(x):
    with torch.no_grad():
        return x * 2


def inference(x):
    with torch.inference_mode():
        return x * 2


def autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x


def no_hooks(x):
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return x * 2


def dual(x):
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.forward_ad.make_dual(x, x) * 2


def summed(x):
    return x.sin().sum()


SWITCHING = {
    no_grad: {"grad"},
    inference: {"inference"},
    autocast: {"autocast on", "autocast off"},
    torch.func.vmap(torch.sin): {"transform"},
    torch.func.grad(summed): {"transform"},
    (lambda x: torch.func.jvp(torch.sin, (x,), (x,))): {"transform"},
    torch.sin: set(),
}


SWITCHES = {
    *("_add_batch_dim", "_remove_batch_dim", "_wrap_for_grad", "_unwrap_for_grad"),
    *("_autograd_grad", "_make_dual", "_unpack_dual", "_set_tensor_requires_grad"),
    *("_maybe_load_decompositions", "_set_fwd_grad_enabled"),
}


def test_state_change():
    """Of everything that Dynamo writes for these, what switches a mode is known, by its kind."""
    x, named = torch.ones(2, 2), set()
    for function, kinds in SWITCHING.items():
        called = calls(captured(function, x))
        changes = {fx.state_change(target) for target in called} - {""}
        assert changes == kinds, function
        named |= {target.__name__ for target in called if fx.state_change(target) == "transform"}
        switches = {
            target.__name__
            for target in called
            if target.__name__.startswith("_") and fx.state_change(target) == ""
        }
        assert switches <= SWITCHES
    # Those that Dynamo writes in its graphs, and those that a graph of export may hold.
    assert named == set(fx._TRANSFORMS)


def test_state_change_of_names():
    """Each name of the lists is that of a function which does what its kind says."""
    functorch, stack = torch._C._functorch, torch._C._autograd
    for name in fx._TRANSFORMS:
        owners = [
            x for x in (functorch, stack, torch._C, torch.autograd.forward_ad) if hasattr(x, name)
        ]
        assert [fx.state_change(getattr(owner, name)) for owner in owners][:1] == ["transform"]
    for name in fx._INFERENCE:
        assert fx.state_change(getattr(torch.autograd.grad_mode, name)) == "inference"


class Dtypes(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.dtypes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is aten.mm.default:
            self.dtypes.append(result.dtype)
        return result


def test_autocast_regions():
    """From the arguments of the calls in Dynamo's graph."""

    def nested(x):
        with torch.autocast("cpu", torch.bfloat16):
            with torch.autocast("cpu", enabled=False):
                return x @ x

    x = torch.ones(2, 2)
    graph = captured(nested, x)
    entered = [node.args for node in graph.nodes if fx.state_change(node.target) == "autocast on"]
    for count, dtype in ((0, torch.float32), (1, torch.bfloat16), (2, torch.float32)):
        with Dtypes() as mode, fx.autocast_regions(entered[:count]):
            x @ x
        assert mode.dtypes == [dtype]
    assert not torch.is_autocast_enabled("cpu")


def branches(x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@torch.compiler.nested_compile_region
def region(x):
    return x * 2


def exported(function: Callable, x: torch.Tensor) -> torch.fx.Graph:
    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    return torch.export.export(Model(), (x,)).graph


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def bodies(graph: torch.fx.Graph) -> list:
    """The calls that hold graphs."""
    return [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and any(fx.body_of(n) is not None for n in node.all_input_nodes if n.op == "get_attr")
    ]


def test_has_plain_bodies():
    x = torch.ones(2, 2, requires_grad=True)
    functions = (checkpointed, branches, lambda x: region(region(x)), lambda x: wrap(torch.sin, x))
    for function in functions:
        nodes = bodies(captured(function, x))
        assert {fx.has_plain_bodies(node.target) for node in nodes} == {True}, function
    combine = lambda a, b: (a + b, a * b)
    scanned = lambda x: torch._higher_order_ops.scan(combine, x[0], x, dim=0)
    (scan,) = bodies(captured(scanned, x.detach()))
    assert not fx.has_plain_bodies(scan.target)
    assert not fx.has_plain_bodies(torch.sin) and not fx.has_plain_bodies("view")


def test_body_change():
    """What export makes of contexts."""
    x = torch.ones(2, 2)
    for function, kind in ((no_grad, "grad"), (autocast, "autocast on")):
        (node,) = bodies(exported(function, x))
        assert fx.has_plain_bodies(node.target) and fx.body_change(node.target) == kind
    (node,) = bodies(exported(no_grad, x))
    assert node.args[0] is False and fx.body_of(node.args[1]) is not None
    (node,) = bodies(exported(autocast, x))
    entered = node.args[:4]
    with Dtypes() as mode, fx.autocast_regions([entered]):
        x @ x
    assert mode.dtypes == [torch.bfloat16] and fx.body_of(node.args[4]) is not None
    assert fx.body_change(torch.sin) == ""
    (node,) = bodies(captured(checkpointed, torch.ones(2, requires_grad=True)))
    assert fx.body_change(node.target) == ""


def test_is_autograd_function():
    x = torch.ones(2, requires_grad=True)
    graph = captured(Doubles.apply, x)
    matches = [node for node in graph.nodes if fx.is_autograd_function(node.target)]
    (node,) = matches
    forward, backward = (fx.body_of(n) for n in node.args[:2])
    assert forward is not None and backward is not None and node.args[2].op == "placeholder"
    (node,) = bodies(captured(checkpointed, x))
    assert not fx.is_autograd_function(node.target) and not fx.is_autograd_function(torch.sin)
