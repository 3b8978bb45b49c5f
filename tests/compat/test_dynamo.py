"""What `_compat.dynamo` knows of a compile and of what a run left, and that it forgets it."""

import contextlib
import os
import sys
import threading
import types

import pytest
import torch
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.testing import CompileCounter
from torch._guards import CompileContext

import gdpa_inductor
from gdpa_inductor._compat import dynamo


def test_counters():
    """Users read and clear them under this very name."""
    assert dynamo.counters is torch._dynamo.utils.counters
    dynamo.counters["gdpa"]["matched"] += 1
    torch._dynamo.utils.counters.clear()
    assert dynamo.counters["gdpa"]["matched"] == 0


def varying(x):
    return x * x.shape[-1]


def test_compiled_alone():
    """Each copy has room for as many graphs as torch gives a function, and sees its own sizes."""
    seen = []

    def backend(gm, inputs):
        seen.append([tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor)])
        return gm.forward

    for size in range(2, 12):
        run = dynamo.compiled_alone(varying, lambda gm, inputs, **_: backend(gm, inputs), {"a": 1})
        x = torch.ones(size)
        assert torch.equal(run(x), x * size)
    assert seen == [[(size,)] for size in range(2, 12)]
    assert all(type(size) is int for [(size,)] in seen)


FACTOR = 2.0


def applied(x, function):
    return function(x) * FACTOR


def test_compiled_alone_checks_what_functions_of_others_read(monkeypatch):
    """The module's own globals are constants; those of a function from elsewhere are not."""
    other = types.ModuleType("other")
    exec("def function(x):\n    return x + table + number", vars(other))
    vars(other).update(table=torch.ones(2), number=1.0)
    monkeypatch.setitem(sys.modules, "other", other)
    other.function.__module__ = "other"
    run = dynamo.compiled_alone(applied, lambda gm, inputs, **_: gm.forward, {})
    x = torch.zeros(2)
    assert run(x, other.function).tolist() == [4.0, 4.0]
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert run(x, other.function).tolist() == [4.0, 4.0]
    other.number = 2.0
    assert run(x, other.function).tolist() == [9.0, 9.0]
    other.table = torch.full((2,), 5.0)
    assert run(x, other.function).tolist() == [21.0, 21.0]


def test_is_disabled():
    assert not dynamo.is_disabled()
    with torch._dynamo.config.patch(disable=True):
        assert dynamo.is_disabled()


def test_compile_errors():
    def failing(gm, inputs, **_):
        raise ValueError("no compiler")

    for function, backend in ((breaking, "eager"), (varying, failing)):
        with pytest.raises(dynamo.compile_errors()):
            dynamo.compiled_alone(function, backend, {})(torch.ones(2))
    one = lambda gm, inputs, **_: gm.forward
    run = dynamo.compiled_alone(varying, one, {})
    with (
        torch._dynamo.config.patch(automatic_dynamic_shapes=False, recompile_limit=1),
        pytest.raises(dynamo.compile_errors()),
    ):
        for size in range(2, 80):
            run(torch.ones(size))


def test_is_of_tracing():
    compiled = dynamo.compiled_alone(varying, "eager", {})
    with pytest.raises(RuntimeError) as caught:
        torch.fx.symbolic_trace(lambda x: compiled(x))
    own = torch._C._dynamo.eval_frame
    if hasattr(own, "set_eval_frame_override"):  # torch 2.11 leaves it set
        own.set_eval_frame_override(own._EvalFrameOverride.NONE)
    assert dynamo.is_of_tracing(caught.value)
    assert not dynamo.is_of_tracing(RuntimeError("another"))


def test_is_traced():
    seen = []
    torch.fx.symbolic_trace(lambda x: (seen.append(dynamo.is_traced()), x)[1])
    assert seen == [True] and not dynamo.is_traced()


def scaled(x, factor):
    return x * factor


def test_without_limit():
    counter = CompileCounter()
    run = torch.compile(scaled, backend=counter, dynamic=False)
    limit = torch._dynamo.config.recompile_limit
    with dynamo.without_limit():
        for factor in map(str, range(2 * limit)):
            run(torch.ones(len(factor) + int(factor)), 2)
    assert counter.frame_count == 2 * limit
    assert torch._dynamo.config.recompile_limit == limit
    assert torch._dynamo.config.accumulated_recompile_limit < 1 << 20


def breaking(x):
    x = x * 2
    torch._dynamo.graph_break()  # the break
    return x + 1


def failing(x):
    torch._check(False)  # the failure
    return x


class Backend:
    """Counts the graphs that it is given, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.graphs, self.error = 0, error

    def __call__(self, gm, inputs):
        self.graphs += 1
        if self.error:
            raise self.error
        return gm.forward


def place(word: str) -> str:
    """The "file:line" of the line of this file that ends in a comment."""
    with open(__file__) as file:
        (number,) = [n for n, text in enumerate(file, 1) if text.rstrip().endswith(f"# {word}")]
    return f"{__file__}:{number}"


def test_dynamo_observed():
    backend, x = Backend(), torch.ones(3)
    dynamo.counters["gdpa"]["kept"] = 3
    before = {name: counter.copy() for name, counter in dynamo.counters.items()}
    reasons = list(torch._dynamo.utils.graph_break_reasons)
    with dynamo.dynamo_observed(backend, [breaking.__code__]) as seen:
        torch.compile(breaking, backend=backend)(x)
        with contextlib.suppress(Exception):
            torch.compile(failing, backend=Backend(ValueError("told")))(x)
        with contextlib.suppress(Exception):
            torch.compile(scaled, backend=Backend(ValueError("told")))(x, 3)
    assert backend.graphs == 2
    assert [graph_break[0] for graph_break in seen.breaks] == [place("the break")]
    assert "graph_break" in seen.breaks[0][1]
    failures = {failure.name: failure for failure in seen.failures}
    assert failures["failing"].location == place("the failure")
    assert (
        failures["scaled"].location.startswith(f"{__file__}:")
        and "told" in failures["scaled"].reason
    )
    assert dict(dynamo.counters) == before
    assert torch._dynamo.utils.graph_break_reasons == reasons


def test_dynamo_observed_keeps_every_failure():
    """Dynamo remembers its last 64 compiles, by objects whose ids are used again."""
    limit, x = torch._dynamo.utils._compilation_metrics.maxlen, torch.ones(3)
    torch._dynamo.utils.set_compilation_metrics_limit(2)
    try:
        for _ in range(3):
            with dynamo.dynamo_observed(Backend(), []) as seen:
                for factor in range(5):
                    with contextlib.suppress(Exception):
                        torch.compile(scaled, backend=Backend(ValueError(f"{factor}")))(x, factor)
            assert [failure.name for failure in seen.failures] == ["scaled"] * 5
            assert torch._dynamo.utils._compilation_metrics.maxlen == 2
    finally:
        torch._dynamo.utils.set_compilation_metrics_limit(limit)


def test_dynamo_observed_forgets():
    """What it has compiled is not run again, and does not count against the limit; what the user
    has compiled stays.
    """
    own, counter = Backend(), CompileCounter()
    compiled = torch.compile(scaled, backend=counter, dynamic=False)
    x = torch.ones(3)
    compiled(x, 2)
    limit = torch._dynamo.config.recompile_limit
    for _ in range(limit + 1):
        with dynamo.dynamo_observed(own, [scaled.__code__]):
            torch.compile(scaled, backend=own)(x, 2)
    assert own.graphs == limit + 1
    compiled(x, 2)
    assert counter.frame_count == 1
    entries = _debug_get_cache_entry_list(scaled.__code__)
    assert any(dynamo.backend_of(entry.backend) is counter for entry in entries)
    for size in range(4, 4 + limit - 1):  # all of the limit is the user's
        compiled(torch.ones(size), 2)
    assert counter.frame_count == limit


def skipped(x):
    return x * 2


def test_dynamo_observed_tries_again():
    """Dynamo skips a frame that it has given up; observed, it looks at it once more."""
    backend, x = Backend(), torch.ones(3)
    frames = torch._C._dynamo.eval_frame
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    frames.set_code_exec_strategy(skipped.__code__, frames._FrameExecStrategy(skip, default))
    torch.compile(skipped, backend=backend)(x)
    assert backend.graphs == 0
    with dynamo.dynamo_observed(backend, [skipped.__code__]):
        torch.compile(skipped, backend=backend)(x)
    assert backend.graphs == 1


def test_is_torchs():
    assert dynamo.is_torchs(f"{torch.nn.__file__}:1") and dynamo.is_torchs(f"{os.__file__}:1")
    assert dynamo.is_torchs(f"{threading.__file__}:1")
    assert not dynamo.is_torchs(f"{__file__}:1") and not dynamo.is_torchs("<string>:1")
    assert not dynamo.is_torchs(f"{gdpa_inductor.__file__}:1")


def test_backend_of():
    """Below what Dynamo and torch.compile wrap around it: in the entries of the cache."""
    backend = Backend()
    for backend_ in (backend, "eager"):
        torch._dynamo.reset()
        torch.compile(scaled, backend=backend_)(torch.ones(3), 2)
        (entry,) = _debug_get_cache_entry_list(scaled.__code__)
        wanted = backend if backend_ is backend else torch._dynamo.lookup_backend("eager")
        assert dynamo.backend_of(entry.backend) is wanted
    assert dynamo.backend_of(backend) is backend
    wrapper = torch._TorchCompileWrapper(backend, None, None, None)
    debugged = torch._dynamo.repro.after_dynamo.wrap_backend_debug(wrapper, None)
    assert dynamo.backend_of(wrapper) is dynamo.backend_of(debugged) is backend


def test_register_backend():
    """It is torch's, which a second registration and threads that race do not get past."""
    assert dynamo.register_backend is torch._dynamo.register_backend
    with pytest.raises(AssertionError, match="duplicate name: eager"):
        dynamo.register_backend(scaled, name="eager")


def test_compile_lock():
    """Dynamo holds it while a backend compiles: another thread does not get it."""
    got = []

    def backend(gm, inputs):
        attempt = lambda: got.append(dynamo.compile_lock().acquire(blocking=False))
        other = threading.Thread(target=attempt)
        other.start()
        other.join()
        return gm.forward

    torch._dynamo.reset()
    torch.compile(scaled, backend=backend)(torch.ones(3), 2)
    assert got == [False]
    with dynamo.compile_lock(), dynamo.compile_lock():  # a thread may take it again
        pass


def test_uncompiled():
    module = torch.nn.Linear(2, 2)
    assert dynamo.uncompiled(torch.compile(module, backend="eager")) is module
    assert dynamo.uncompiled(torch.compile(scaled, backend="eager")) is scaled
    assert dynamo.uncompiled(module) is module and dynamo.uncompiled(scaled) is scaled


def test_settings():
    options = {"gdpa.profit": False}
    how = {"backend": "gdpa", "dynamic": True, "options": options}
    module = torch.nn.Linear(2, 2)
    assert dynamo.settings(torch.compile(module, **how)) == (True, options)
    assert dynamo.settings(torch.compile(scaled, **how)) == (True, options)
    assert dynamo.settings(torch.compile(scaled, backend="gdpa")) == (None, {})
    assert dynamo.settings(torch.compile(scaled, backend="eager", dynamic=False)) == (False, {})
    assert dynamo.settings(module) == dynamo.settings(scaled) == (None, {})
    module.compile(**how)
    assert dynamo.settings(module) == (True, options)


def test_compiled_calls_set_aside():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.compile(backend="eager")
    model[0].compile(backend="eager")
    calls = model._compiled_call_impl, model[0]._compiled_call_impl
    with dynamo.compiled_calls_set_aside(model):
        assert model._compiled_call_impl is model[0]._compiled_call_impl is None
    assert (model._compiled_call_impl, model[0]._compiled_call_impl) == calls
    with dynamo.compiled_calls_set_aside(scaled):
        pass


def seen(look, function, *inputs) -> list:
    """What `look` says of each graph, while it is compiled."""
    answers = []

    def backend(gm, _):
        answers.append(look(gm))
        return gm.forward

    torch.compile(function, backend=backend)(*inputs)
    return answers


def test_captured_graph():
    assert dynamo.captured_graph() is None
    look = lambda gm: (dynamo.captured_graph(), gm)
    ((whole, gm),) = seen(look, lambda x: x.sin() + 1, torch.ones(3))
    assert isinstance(whole, torch.fx.Graph)
    targets = [node.target for node in gm.graph.nodes if node.op.startswith("call")]
    assert [node.target for node in whole.nodes if node.op.startswith("call")] == targets
    assert dynamo.captured_graph() is None


class Storing(torch.nn.Module):
    def forward(self, x):
        self.half = x / 2
        self.several = {"twice": x * 2, "others": [x + 1, 3]}
        self.count = 5
        return x - 1


def test_stored_attributes():
    """Tensors that attributes keep, in containers too; nothing outside of a compile."""
    attributes = []

    def backend(gm, _):
        stored, nodes = dynamo.stored_attributes(), gm.graph.nodes
        for node in nodes:
            if node.op == "call_function":
                value = node.meta["example_value"]
                attributes.append((node.target.__name__, stored.get(id(value))))
        return gm.forward

    torch.compile(Storing(), backend=backend)(torch.ones(3))
    assert dict(attributes) == {"truediv": "half", "mul": "several", "add": "several", "sub": None}
    assert dynamo.stored_attributes() == {}


def test_frame_under_way():
    """The same in recompiles of a frame, another in other frames."""
    names = []

    def backend(gm, _):
        names.append(dynamo.frame_under_way())
        return gm.forward

    run = torch.compile(scaled, backend=backend, dynamic=False)
    for size in (3, 4):
        run(torch.ones(size), 2)
    torch.compile(breaking, backend=backend)(torch.ones(3))
    first, again, other, rest = names
    assert first == again != "" and len({first, other, rest}) >= 2
    assert dynamo.frame_under_way() == "" and CompileContext.current_compile_id() is None


class Parallel(torch.nn.parallel.DistributedDataParallel):
    """As far as it can be had without other processes."""

    def __init__(self, module):
        torch.nn.Module.__init__(self)
        self.module = module


def test_compile_under_way():
    """The frame and which of its compiles; the same when Dynamo begins a compile again."""
    names = []

    def backend(gm, _):
        names.append(dynamo.compile_under_way())
        return gm

    run = torch.compile(scaled, backend=backend, dynamic=False)
    run(torch.ones(2), 2)
    run(torch.ones(3), 2)
    assert [name.split("/")[1] for name in names] == ["0", "1"]
    assert len({name.split("/")[0] for name in names}) == 1
    assert dynamo.compile_under_way() == ""


def test_outermost_call():
    """What calls a graph with a break calls another compiled function: one call, to the user."""
    models, ended = [], []

    def backend(gm, _):
        call = dynamo.outermost_call()
        models.append(call.model)
        call.at_end.append(lambda: ended.append(len(models)))
        return gm

    inner = torch.compile(scaled, backend=backend)

    @torch._dynamo.disable
    def between(x):
        return inner(x, 3)

    outer = torch.compile(lambda x: between(x + 1) * 2, backend=backend)
    outer(torch.ones(2))
    assert len(set(models)) == 1 and len(models) == 3
    assert ended == [3, 3, 3], "not before the call ends"
    inner(torch.ones(2, 2), 3)
    assert len(set(models)) == 2 and ended == [3, 3, 3, 4]
    assert dynamo.outermost_call() is None


def test_is_cut_by_ddp():
    """Inside the forward of a module under DistributedDataParallel, if its optimizer is on."""
    parallel = Parallel(torch.nn.Linear(2, 2))
    for mode, cut in (("ddp_optimizer", True), ("no_optimization", False)):
        with torch._dynamo.config.patch(optimize_ddp=mode):
            with parallel._inside_ddp_forward():
                assert dynamo.is_cut_by_ddp() is cut
            assert not dynamo.is_cut_by_ddp()


def checkpointed(x):
    return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)


def test_is_dynamo_body():
    look = lambda gm: [
        dynamo.is_dynamo_body(m) for m in gm.modules() if isinstance(m, torch.fx.GraphModule)
    ]
    assert seen(look, checkpointed, torch.ones(2, requires_grad=True)) == [[False, True]]
    traced = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))  # a graph of nobody's
    assert not dynamo.is_dynamo_body(traced)


def inputs(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return gm.graph.find_nodes(op="placeholder")


def test_real_input():
    """Dynamo holds inputs weakly: one that is gone is no value, and no error."""
    tensors = [torch.arange(4), torch.ones(4)]

    def look(gm):
        values = map(dynamo.real_input, inputs(gm))
        assert [x is y for x, y in zip(values, tensors, strict=True)] == [True, True]
        return [(node, node.meta["grapharg"]) for node in inputs(gm)]

    (graph_inputs,) = seen(look, lambda x, y: x + y, *tensors)
    tensors.clear()
    for node, graph_input in graph_inputs:
        node.meta["grapharg"] = graph_input
        assert dynamo.real_input(node) is None
    assert dynamo.real_input(torch.fx.Graph().placeholder("x")) is None


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False)])
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x):
        return self.layers[0](x) * self.scale * outside


outside = torch.full((2,), 3.0)


def test_source_name():
    look = lambda gm: [(node, dynamo.source_name(node)) for node in inputs(gm)]
    (sources,) = seen(look, Model(), torch.ones(2))
    nodes, names = zip(*sources)
    own = "._modules['layers']._modules['0']._parameters['weight']", "._buffers['scale']"
    assert set(names) == {"L['x']", "G['outside']", *(f"L['self']{name}" for name in own)}
    assert tuple(map(dynamo.source_name, nodes)) == names  # afterwards too
    assert dynamo.source_name(torch.fx.Graph().placeholder("x")) == ""
