"""What `_compat.inductor` has Inductor do: compile, find its caches, start its processes."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.utils import fresh_cache
from torch.utils._config_module import _UNSET_SENTINEL

from gdpa_inductor._compat import inductor

TAG = "tag_of_a_test"


@pytest.fixture(autouse=True)
def tags():
    before = torch.compiler.config.cache_key_tag
    yield
    torch.compiler.config.cache_key_tag = before


def test_trace_artifact():
    """The text is made if someone records the trace, and only then."""
    calls = []

    def payload() -> str:
        calls.append(True)
        return "the text"

    inductor.trace_artifact("of_a_test", payload)
    assert calls == []
    trace, records = logging.getLogger("torch.__trace"), []
    handler = logging.Handler()
    handler.emit = lambda record: records.append((record.metadata, record.payload))
    level = trace.level
    trace.addHandler(handler), trace.setLevel(logging.DEBUG)
    try:
        inductor.trace_artifact("of_a_test", payload)
    finally:
        trace.removeHandler(handler), trace.setLevel(level)
    payloads = [
        payload for data, payload in records if data.get("artifact", {}).get("name") == "of_a_test"
    ]
    assert payloads == ["the text"] and calls == [True]


def test_inductor_config():
    assert inductor.inductor_config("max-autotune", None)["max_autotune"] is True
    assert inductor.inductor_config(None, None) == {}
    settings = inductor.inductor_config(None, {"max_autotune": True, "triton.cudagraphs": False})
    assert settings["max_autotune"] is True and settings["triton.cudagraphs"] is False
    for wrong in ({"no_such_option": 1}, {"max_autotune": "yes"}):
        with pytest.raises(RuntimeError):
            inductor.inductor_config(None, wrong)


def test_option_names():
    assert {"max_autotune", "triton.cudagraphs", "size_asserts"} <= inductor.option_names()
    assert "gdpa.strict" not in inductor.option_names()


def test_thorough():
    assert not inductor.thorough()
    for name in ("max_autotune", "max_autotune_gemm"):
        with config.patch({name: True}):
            assert inductor.thorough()


@pytest.fixture
def graph_cache() -> Iterator[None]:
    """FxGraphCache may be switched on here; the environment of the tests keeps it off."""
    forced = config._config["fx_graph_cache"]
    with (
        mock.patch.object(forced, "env_value_force", _UNSET_SENTINEL),
        config.patch(fx_graph_cache=True),
    ):
        yield


def hits(**options: Any) -> int:
    """How many graphs a compile finds in the cache. Products need no C++ compiler."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.compile(lambda x: x @ x, **options)(torch.ones(3, 3))
    return torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"]


def test_cache_key_tag(graph_cache):
    """A graph under another tag is another graph."""
    with fresh_cache():
        assert hits() == 0 and hits() == 1
        with inductor.cache_key_tag(TAG):
            assert torch.compiler.config.cache_key_tag.endswith(TAG)
            assert hits() == 0 and hits() == 1
        assert TAG not in torch.compiler.config.cache_key_tag and hits() == 1


def test_add_cache_key_tag():
    before = torch.compiler.config.cache_key_tag
    for _ in range(2):
        inductor.add_cache_key_tag(TAG)
        assert torch.compiler.config.cache_key_tag == before + TAG


def test_cache_folder(graph_cache, monkeypatch, tmp_path: Path):
    """Where Inductor itself writes."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert Path(inductor.cache_folder()) == tmp_path
    hits()
    assert list(tmp_path.glob("fxgraph/*"))
    for name, value in (("force_disable_caches", True), ("fx_graph_cache", False)):
        with config.patch({name: value}):
            assert inductor.cache_folder() is None
            assert Path(inductor.cache_root()) == tmp_path


def test_cache_root(monkeypatch, tmp_path: Path):
    """The folder is that of the moment, as it is for Inductor."""
    for name in ("one", "another"):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / name))
        assert Path(inductor.cache_root()) == tmp_path / name


@pytest.fixture
def processes():
    """Inductor's workers, of which the tests have none otherwise."""
    from torch._inductor import async_compile

    async_compile.AsyncCompile.process_pool.cache_clear()
    with config.patch(compile_threads=2, worker_start_method="subprocess"):
        yield
        async_compile.shutdown_compile_workers()
    async_compile.AsyncCompile.process_pool.cache_clear()


def test_start_processes():
    """As Inductor does when it begins to compile: not where it compiles in this process."""
    from torch._inductor.async_compile import AsyncCompile

    assert config.compile_threads == 1
    with mock.patch.object(AsyncCompile, "process_pool") as pool:
        inductor.start_processes()
        assert not pool.called
        with config.patch(compile_threads=2), mock.patch.object(AsyncCompile, "warm_pool") as warm:
            inductor.start_processes()
            assert warm.called


def test_in_background(processes):
    future = inductor.in_background(os.getpid)
    assert future is not None and future.result(120) != os.getpid()
    with config.patch(compile_threads=1):
        assert inductor.in_background(os.getpid) is None


def test_draws_as_eager():
    assert not inductor.draws_as_eager()
    with config.patch(fallback_random=True):
        assert inductor.draws_as_eager()


def test_random_settings():
    """Those of one compile that say how it draws."""
    with inductor.random_settings({"fallback_random": True, "max_autotune": True}):
        assert inductor.draws_as_eager() and not inductor.thorough()
    with inductor.random_settings({}):
        assert not inductor.draws_as_eager()


def draws_integers(op, arguments: tuple, size: tuple[int, ...]) -> None:
    """It draws them from the generator, and is known to draw."""
    torch.manual_seed(0)
    first = op(*arguments)
    assert first.shape == size and first.dtype == torch.int64
    assert not torch.equal(first, op(*arguments))
    torch.manual_seed(0)
    assert torch.equal(first, op(*arguments))
    assert torch.Tag.nondeterministic_seeded in op.tags


def test_seed_op():
    draws_integers(inductor.seed_op(), (torch.device("cpu"),), ())


def test_seeds_op():
    draws_integers(inductor.seeds_op(), (3, torch.device("cpu")), (3,))


def test_custom_graph_pass(graph_cache):
    """Inductor calls a pass of this class with the captured graph."""
    calls = []

    class Pass(inductor.custom_graph_pass()):
        def __call__(self, graph):
            calls.append(graph.owning_module.graph is graph)

        def uuid(self):
            return "of a test"

    with fresh_cache():
        hits(options={"pre_grad_custom_pass": Pass()})
    assert calls == [True]


def products(x, w):
    return ((x @ w) @ w,)


def test_compile_with_inductor():
    """Under the tag, also the backward, which is compiled later; settings hold for this graph."""
    tags, seen = [], []
    inner = torch._inductor.compile_fx.compile_fx_inner

    def noted(*args, **kwargs):
        tags.append(torch.compiler.config.cache_key_tag)
        seen.append(config.size_asserts)
        return inner(*args, **kwargs)

    def backend(gm, inputs):
        return inductor.compile_with_inductor(gm, inputs, {"size_asserts": not plain}, TAG)

    plain = config.size_asserts
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    with mock.patch.object(torch._inductor.compile_fx, "compile_fx_inner", noted):
        for dynamic in (False, True):  # of symbolic sizes, the backward is compiled when it runs
            tags.clear()
            torch._dynamo.reset()
            (out,) = torch.compile(products, backend=backend, dynamic=dynamic)(x, w)
            grads = torch.autograd.grad(out.sum(), (x, w))
            wanted = torch.autograd.grad(products(x, w)[0].sum(), (x, w))
            torch.testing.assert_close(grads, wanted)
            assert len(tags) == 2 and all(tag.count(TAG) == 1 for tag in tags)
    assert set(seen) == {not plain} and config.size_asserts == plain
    assert TAG not in torch.compiler.config.cache_key_tag


def narrowed(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x.bfloat16().float() - x)


def test_drops_roundings():
    """Whether generated C++ has the value of x, or that of x in 16 bits, where it is to round."""
    x = torch.rand(64) + 1
    compiled = inductor.compile_graph(narrowed, (x, torch.empty(64)), dynamic=False, aot=False)
    output = torch.empty(64)
    compiled.run(x, output)
    wanted = x.bfloat16().float() - x
    assert wanted.abs().max() > 0
    if inductor.drops_roundings():
        assert not torch.equal(output, wanted)
    else:
        assert torch.equal(output, wanted)


def test_CompiledGraph():
    graph = inductor.CompiledGraph(run=len, fits=bool)
    assert graph.run([1]) == 1 and graph.fits([1])


def test_compile_graph():
    """It writes to an argument or returns a tuple; fits say which sizes and strides it is for."""
    for aot in (False, True):
        check_compiled(aot)


def check_compiled(aot: bool) -> None:

    def product(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ y,)

    x, y = torch.randn(4, 6), torch.randn(6, 5)
    tags = []
    inner = torch._inductor.compile_fx.compile_fx_inner

    def noted(*args, **kwargs):
        tags.append((torch.compiler.config.cache_key_tag, config.pre_grad_custom_pass))
        return inner(*args, **kwargs)

    everywhere = config.patch(pre_grad_custom_pass=lambda graph: pytest.fail("a pass of models"))
    with everywhere, mock.patch.object(torch._inductor.compile_fx, "compile_fx_inner", noted):
        fixed = inductor.compile_graph(product, (x, y), dynamic=False, aot=aot, tag=TAG)
        varying = inductor.compile_graph(product, (x, y), dynamic=True, aot=aot)
    assert [TAG in tag for tag, _ in tags] == [True, False]
    torch.testing.assert_close(fixed.run(x, y)[0], x @ y)
    assert fixed.fits((x, y))
    for size in (4, 9):
        operands = torch.randn(size, 6), torch.randn(6, 5)
        assert varying.fits(operands)
        torch.testing.assert_close(varying.run(*operands)[0], operands[0] @ operands[1])
    for operands in ((x.mT.contiguous().mT, y), (torch.randn(4, 7), y), (x[:1], y)):
        assert not varying.fits(operands)

    def written(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x @ x)

    x, out = torch.randn(4, 4), torch.empty(4, 4)
    inductor.compile_graph(written, (x, out), dynamic=False, aot=aot).run(x, out)
    torch.testing.assert_close(out, x @ x)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("aot", [False, True])
@pytest.mark.usefixtures("graph_cache")
def test_what_compile_graph_made_is_found_in_the_cache(dynamic: bool, aot: bool) -> None:
    """So the next process need not compile it. What it is for is known then too."""
    counts = []
    with fresh_cache():
        for _ in range(2):
            counters.clear()
            x, y = torch.randn(4, 6), torch.randn(6, 5)
            graph = inductor.compile_graph(lambda x, y: (x @ y,), (x, y), dynamic=dynamic, aot=aot)
            torch.testing.assert_close(graph.run(x, y)[0], x @ y)
            assert graph.fits((x, y)) and (not dynamic or not graph.fits((x.mT.contiguous().mT, y)))
            caches = counters["inductor"]
            counts.append((caches["fxgraph_cache_miss"], caches["fxgraph_cache_hit"]))
            assert not caches["fxgraph_cache_bypass"]
    assert counts == [(1, 0), (0, 1)]
