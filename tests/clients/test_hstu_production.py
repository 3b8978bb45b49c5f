"""The production HSTU reference functions of generative-recommenders, unmodified, over fbgemm: all
options of `pytorch_hstu_mha`, on the values alone and without a mask of N x N. And its serving
function, `pytorch_cached_hstu_mha`.
"""

from types import ModuleType

import pytest
import torch

from benchmarks.models.hstu import PRODUCTION
from tests._judge import check_step
from tests._recorder import Recorder
from tests.clients.published import Slow, published
from tests.jagged import offsets_of
from tests.operands import generator_of

LENGTHS, N, HEADS, WIDTH = ((7, 0, 12, 1), (3, 9, 10, 12)), 12, 2, 16
TARGETS = torch.tensor([1, 0, 3, 1])
OPTIONS = {
    "causal": {},
    "full": {"causal": False},
    "targets": {"num_targets": TARGETS},
    "window": {"max_attn_len": 3},
    "window and targets": {"max_attn_len": 3, "num_targets": TARGETS},
    "window, full at the end": {"max_attn_len": 2, "min_full_attn_seq_len": 3},
    "prefix": {"contextual_seq_len": 3},
    "everything": {
        "num_targets": TARGETS,
        "max_attn_len": 3,
        "contextual_seq_len": 2,
        "min_full_attn_seq_len": 2,
    },
    "full, window and targets": {"causal": False, "max_attn_len": 3, "num_targets": TARGETS},
    "scale of a number": {"attn_scale": torch.tensor(0.25)},
    "scale per token": {"attn_scale": "l"},
}


@pytest.fixture(scope="module")
def hstu(tmp_path_factory) -> ModuleType:
    return published(PRODUCTION, tmp_path_factory.mktemp("hstu"))


def step(function, lengths, options, dtype) -> dict[str, torch.Tensor]:
    """Output and gradients on one batch, the same values in every precision."""
    generator = generator_of(sum(lengths))
    drawn = [torch.randn(sum(lengths), HEADS, WIDTH, generator=generator) for _ in range(3)]
    leaves = dict(zip("qkv", (x.to(dtype).requires_grad_() for x in drawn)))
    options = dict(options)
    if isinstance(options.get("attn_scale"), str):
        leaves["scale"] = torch.rand(sum(lengths), generator=generator).to(dtype).requires_grad_()
        options["attn_scale"] = leaves["scale"]
    offsets = offsets_of(lengths)
    operands = (N, 0.25, leaves["q"], leaves["k"], leaves["v"], offsets)
    output = function(*operands, training=True, **options)
    grads = torch.autograd.grad(output.square().sum(), list(leaves.values()))
    return {"output": output.detach(), **dict(zip(leaves, grads))}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", OPTIONS)
def test_runs_on_the_values_alone(hstu, name, dtype, monkeypatch):
    recorder = Recorder()
    compiled = torch.compile(hstu.pytorch_hstu_mha, backend=recorder, fullgraph=True)
    for lengths in LENGTHS:
        mine = step(compiled, lengths, OPTIONS[name], dtype)
        eager = step(hstu.pytorch_hstu_mha, lengths, OPTIONS[name], dtype)
        with monkeypatch.context() as patch:
            patch.setattr(torch.ops, "fbgemm", Slow)
            exact = step(hstu.pytorch_hstu_mha, lengths, OPTIONS[name], torch.float64)
        check_step(mine, eager, exact)
    for graph in recorder.graphs:
        (match,) = graph.matches
        assert match.problem.jagged_query and match.problem.jagged_key and not match.notes
        assert not graph.guards_added
        # Neither padding nor a mask of N x N is left.
        gone = ("jagged_to_padded_dense", "dense_to_jagged", "arange", "eye", "logical_or")
        assert not any(graph.calls_after[call] for call in gone), graph.after
        assert all("q_idx" not in spec.access for spec in match.problem.program.aux)


def test_counts_jagged_matches(hstu):
    compiled = torch.compile(
        hstu.pytorch_hstu_mha, backend="gdpa", fullgraph=True, options={"gdpa.profit": False}
    )
    step(compiled, LENGTHS[0], {}, torch.float32)
    counted = torch._dynamo.utils.counters["gdpa"]
    assert (counted["matched"], counted["matched_varlen"]) == (1, 1)


CACHED = ("causal", "targets", "window and targets", "prefix")


@pytest.mark.parametrize("name", CACHED)
def test_new_rows_attend_to_keys_that_are_not_padded(hstu, name):
    """Rows of its mask are chosen by another mask, between the products."""
    recorder, new = Recorder(), 2
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        compiled = torch.compile(hstu.pytorch_cached_hstu_mha, backend=recorder, fullgraph=True)
        for lengths in ((7, 2, 12, 3), (3, 9, 10, 12)):
            generator = generator_of(sum(lengths))
            rows = (new * len(lengths), sum(lengths), sum(lengths))
            operands = [torch.randn(n, HEADS, WIDTH, generator=generator) for n in rows]
            arguments = (N, 0.25, *operands, offsets_of(lengths))
            results = compiled(*arguments, **OPTIONS[name])
            torch.testing.assert_close(
                results, hstu.pytorch_cached_hstu_mha(*arguments, **OPTIONS[name])
            )
    for match in recorder.matches:
        assert match.problem.jagged_key and not match.notes
    assert recorder.matches
