"""The research HSTU layers of generative-recommenders, unmodified, over fbgemm.

`dense_to_jagged` without the total length ends Dynamo's graph, so the rows of the output stay
padded, and the keys do not.
"""

import copy

import pytest
import torch

from benchmarks.models.hstu import NEEDS, RESEARCH
from tests._judge import check_step, noise_of_model
from tests._recorder import Recorder
from tests.clients.published import Slow, published
from tests.jagged import offsets_of
from tests.operands import generator_of

WIDTH, HEADS, N = 32, 2, 16
LENGTHS = (9, 0, 16, 1)


@pytest.fixture(scope="module")
def hstu(tmp_path_factory):
    return published(RESEARCH, tmp_path_factory.mktemp("hstu"), NEEDS)


def layers(hstu) -> torch.nn.Module:
    def bias():
        return hstu.RelativeBucketedTimeAndPositionBasedBias(
            max_seq_len=N,
            num_buckets=8,
            bucketization_fn=lambda x: (torch.log(torch.abs(x).clamp(min=1)) / 0.301).long(),
        )

    return hstu.HSTUJagged(
        modules=[
            hstu.SequentialTransductionUnitJagged(
                embedding_dim=WIDTH, linear_hidden_dim=16, attention_dim=16, dropout_ratio=0.0,
                attn_dropout_ratio=0.0, num_heads=HEADS, linear_activation="silu",
                relative_attention_bias_module=bias(), max_length=N,
            )
            for _ in range(2)
        ],
        autocast_dtype=None,
    )  # fmt: skip


def step(model, call, dtype) -> dict[str, torch.Tensor]:
    """Output and gradients of a training step, the same values in every precision."""
    generator = generator_of()
    x = torch.randn(sum(LENGTHS), WIDTH, generator=generator).to(dtype)
    times = torch.randint(0, 5000, (len(LENGTHS), N), generator=generator).cumsum(1)
    mask = torch.ones(N, N, dtype=dtype).tril()
    model.zero_grad()
    output, _ = call(
        x=x, x_offsets=offsets_of(LENGTHS), all_timestamps=times, invalid_attn_mask=mask
    )
    output.square().sum().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"output": output.detach(), **grads}


def exactly(model, monkeypatch) -> dict[str, torch.Tensor]:
    """The same step in fp64."""
    exact = copy.deepcopy(model).double()
    with monkeypatch.context() as patch:
        patch.setattr(torch.ops, "fbgemm", Slow)
        return step(exact, exact, torch.float64)


def test_trains_with_jagged_keys(hstu, monkeypatch):
    model = layers(hstu)
    recorder = Recorder()
    mine = step(model, torch.compile(model, backend=recorder), torch.float32)
    eager, truth = step(model, model, torch.float32), exactly(model, monkeypatch)
    # A table of times has nine elements, and how exact eager's sums are there is luck.
    noise = noise_of_model(
        model, lambda: step(model, model, torch.float32), lambda: exactly(model, monkeypatch)
    )
    check_step(mine, eager, truth, noise)
    assert recorder.matches, recorder.why()
    for match in recorder.matches:
        assert match.problem.jagged_key and not match.problem.jagged_query
        assert {note.code.name for note in match.notes} == {"JAGGED_OUTPUT"}
