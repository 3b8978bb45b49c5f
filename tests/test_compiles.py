"""compiles: regions that DDP cuts, and the count of regions over recompiles and graph breaks."""

import logging
import re
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from expecttest import assert_expected_inline
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gdpa_inductor
from gdpa_inductor import GDPAPass
from gdpa_inductor.backend import apply
from gdpa_inductor.kernels.blocked import block_pass
from gdpa_inductor.options import Options

LENGTH = 64


class Layer(nn.Module):
    """Attention with a learned bias for every score, which fills a bucket of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.qkv = nn.Parameter(torch.zeros(2, LENGTH, LENGTH)), nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return x + (F.silu(q @ k.mT + self.bias) @ v).transpose(1, 2).flatten(2)


class Stack(nn.Module):
    def __init__(self, layers: int, checkpointed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.checkpointed = checkpointed

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


BIAS = 2 * LENGTH * LENGTH * 4 / 2**20  # MiB
needs_group = pytest.mark.usefixtures("group")


def parallel(model: nn.Module, buckets: float, monkeypatch) -> nn.Module:
    """The model under DDP with buckets of so many MiB, the first one too."""
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", int(buckets * 2**20))
    return DistributedDataParallel(model, bucket_cap_mb=buckets)


def inputs() -> torch.Tensor:
    return torch.randn(2, LENGTH, 32)


def applied(model: nn.Module, **options: object) -> nn.Module:
    """Compiled by the rewrite alone, without Inductor."""

    def backend(gm, example_inputs):
        apply(gm, Options.make({"profit": False, **options}))
        return gm.forward

    return torch.compile(model, backend=backend)


@needs_group
def test_regions_that_ddp_cuts_are_refused(monkeypatch) -> None:
    """They vanished: neither part holds both products."""
    report = gdpa_inductor.explain(parallel(Stack(3), BIAS, monkeypatch), profit=False)(inputs())
    text = re.sub(r"\S*test_compiles\.py:\d+", "FILE:LINE", str(report))
    advice = [graph_break.advice for graph_break in report.graph_breaks]
    assert_expected_inline(
        text.partition("\n\nGraph breaks")[0],
        """\
gdpa: 0 regions fused, 3 not fused (0.19 MiB), of which 3 could be, 3 graph breaks, in 4 graphs

Not fused, but could be
  FILE:LINE in layers.0, layers.1, layers.2 (×3)
      UNSUPPORTED/DDP_CUT: DDP ends a bucket of gradients between the two products, and compiles them apart
      O = (silu(s + a0)) V, s = Q Kᵀ
      scores: 0.062 MiB
      to change: set `torch._dynamo.config.optimize_ddp = False`""",  # noqa: E501
    )
    harmless = "nothing, it is harmless: torch's own code, outside of the model"
    cut = "nothing, but where a region is not fused: DDP_CUT"
    assert sorted(advice) == [cut, harmless, harmless]


@needs_group
@pytest.mark.parametrize(
    ("layers", "buckets", "fused"),
    [(2, BIAS, 0), (3, 2 * BIAS, 2), (2, 100.0, 2)],
)
def test_expect_counts_the_whole_of_a_cut_graph(layers, buckets, fused, monkeypatch) -> None:
    """It was held against each bucket."""
    model = parallel(Stack(layers), buckets, monkeypatch)
    applied(model, expect=fused)(inputs()).sum().backward()
    assert gdpa_inductor.regions() == counters["gdpa"]["matched"] == fused
    assert counters["gdpa"]["rejected"] == layers - fused
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed) as raised:
        applied(model, expect=layers + 1)(inputs())
    message = str(raised.value.inner_exception)
    assert message.startswith(f"gdpa.expect={layers + 1}, regions rewritten: {fused}\n")
    assert message.count("UNSUPPORTED/DDP_CUT") == layers - fused


@needs_group
def test_strict_blames_the_cut(monkeypatch) -> None:
    with pytest.raises(BackendCompilerFailed, match="UNSUPPORTED/DDP_CUT"):
        applied(parallel(Stack(2), BIAS, monkeypatch), strict=True)(inputs())


@needs_group
def test_a_cut_is_warned_of_once(monkeypatch, caplog) -> None:
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        applied(parallel(Stack(3), BIAS, monkeypatch), summary=False)(inputs())
    (record,) = (r for r in caplog.records if r.name == "gdpa_inductor")
    assert_expected_inline(
        record.getMessage(),
        """3 not fused: DDP ends a bucket of gradients between the two products, and compiles them apart; to change: set `torch._dynamo.config.optimize_ddp = False`""",  # noqa: E501
    )


@needs_group
@pytest.mark.parametrize("door", ["backend", "pass"])
def test_without_the_cut_all_is_fused(door: str, monkeypatch) -> None:
    model = parallel(Stack(2), BIAS, monkeypatch)
    doors = {
        "backend": {"backend": "gdpa", "options": {"gdpa.profit": False, "gdpa.expect": 2}},
        "pass": {"options": {"pre_grad_custom_pass": GDPAPass(profit=False, expect=2)}},
    }
    with torch._dynamo.config.patch(optimize_ddp=False):
        torch.compile(model, **doors[door])(inputs()).sum().backward()
    assert gdpa_inductor.regions() == 2


@needs_group
def test_the_pass_sees_the_cut_too(monkeypatch) -> None:
    options = {"pre_grad_custom_pass": GDPAPass(profit=False, expect=0)}
    torch.compile(parallel(Stack(1), BIAS, monkeypatch), options=options)(inputs())
    assert counters["gdpa"]["rejected"] == 1


@needs_group
def test_bodies_of_checkpoints_are_never_cut(monkeypatch) -> None:
    model = parallel(Stack(3, checkpointed=True), BIAS, monkeypatch)
    report = gdpa_inductor.explain(model, profit=False)(inputs())
    assert len(report.matches) == 3 and report.rejections == ()
    applied(model, expect=3)(inputs())


# The count


def test_regions_are_those_of_the_last_compiles() -> None:
    """A second shape, and a second mode, compile the model again: `matched` adds up."""
    model = applied(Stack(2), expect=2)
    model(inputs())
    model(torch.randn(3, LENGTH, 32))
    with torch.no_grad():
        model(inputs())
    assert counters["gdpa"]["matched"] >= 4 and gdpa_inductor.regions() == 2


def test_regions_are_counted_over_graph_breaks() -> None:
    layers = Stack(2).layers

    def function(x):
        x = layers[0](x)
        torch._dynamo.graph_break()
        return layers[1](x)

    model = applied(function, expect=1)
    model(inputs())
    model(torch.randn(3, LENGTH, 32))
    assert gdpa_inductor.regions() == 2
    counters.clear()
    assert gdpa_inductor.regions() == 0


def test_explain_and_exported_graphs_do_not_count() -> None:
    model, x = Stack(2), inputs()
    gdpa_inductor.explain(model, profit=False)(x)
    gdpa_inductor.rewrite(torch.export.export(model, (x,)), profit=False, expect=2)
    assert gdpa_inductor.regions() == 0


def test_a_pass_for_the_whole_process_leaves_our_own_graphs_alone(caplog) -> None:
    """The CPU kernel has Inductor compile its score program when the model runs: no model of the
    user. `expect` raised there, so that the program ran uncompiled.
    """
    config = torch._inductor.config
    block_pass.RUNNERS.clear()
    block_pass._variant.cache_clear()
    function = lambda q: F.silu(q @ q.mT) @ q
    q = torch.randn(2, 2, 64, 32, requires_grad=True)
    with (
        caplog.at_level(logging.WARNING, "gdpa_inductor"),
        config.patch(pre_grad_custom_pass=GDPAPass(expect=1, profit=False)),
        torch._inductor.utils.fresh_cache(),
    ):
        torch.compile(function)(q).sum().backward()
    assert gdpa_inductor.regions() == 1 and counters["gdpa"]["lowered_cpu"] == 2
    assert caplog.records == []
