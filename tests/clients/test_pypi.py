"""Unmodified models from PyPI: every attention rewritten, all else left, training as in eager.

FLASH-pytorch (gated attention units) and x-transformers (`attn_sigmoid`); skipped where they are
not installed (`pip install gdpa-inductor[clients]`).
"""

import copy

import pytest
import torch

from tests._judge import check_step
from tests._recorder import Recorder


def judge(
    model: torch.nn.Module, inputs: dict, regions: int, *, dynamic: bool | None = None
) -> None:
    """Compare a training step of the rewritten model with eager's, in fp32 by the error rule."""
    recorder = Recorder()
    exact = copy.deepcopy(model).double()
    compiled = torch.compile(model, backend=recorder, dynamic=dynamic)
    eager = step(model, inputs)
    truth = step(exact, {name: widened(value) for name, value in inputs.items()})
    mine = step(model, inputs, compiled)
    assert len(recorder.matches) == regions, recorder.why()
    assert not any(graph.guards_added for graph in recorder.graphs)
    check_step(mine, eager, truth)


def step(model: torch.nn.Module, inputs: dict, call=None) -> dict[str, torch.Tensor]:
    """The output, and the gradient of every parameter that has one."""
    model.zero_grad()
    torch.manual_seed(0)
    output = (model if call is None else call)(**inputs)
    output.square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"output": output.detach(), **gradients}


def widened(value: object) -> object:
    return value.double() if torch.is_tensor(value) and value.is_floating_point() else value


@pytest.mark.parametrize("laplace", [False, True], ids=["relu2", "laplace"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_gated_attention_unit(laplace, causal, masked):
    flash_pytorch = pytest.importorskip("flash_pytorch")
    model = flash_pytorch.GAU(dim=32, query_key_dim=16, causal=causal, laplace_attn_fn=laplace)
    inputs = {"x": torch.randn(2, 24, 32)}
    if masked:
        inputs["mask"] = torch.rand(2, 24) < 0.7
    judge(model, inputs, regions=1)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_flash_layer_keeps_its_linear_attention(causal):
    """Quadratic within groups, which is ours; linear across groups, which is not."""
    flash_pytorch = pytest.importorskip("flash_pytorch")
    model = flash_pytorch.FLASH(dim=32, group_size=8, query_key_dim=16, causal=causal)
    judge(model, {"x": torch.randn(2, 32, 32)}, regions=1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alibi_pos_bias": True},
        {"rel_pos_bias": True},
        {"attn_one_kv_head": True},
        {"attn_kv_heads": 2},
        {"rotary_pos_emb": True, "attn_qk_norm": True},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
def test_sigmoid_attention(options, causal):
    x_transformers = pytest.importorskip("x_transformers")
    layers = x_transformers.Decoder if causal else x_transformers.Encoder
    stack = layers(dim=32, depth=2, heads=4, attn_dim_head=16, attn_sigmoid=True, **options)
    judge(stack, {"x": torch.randn(2, 20, 32)}, regions=2)


def test_softmax_attention_is_left():
    x_transformers = pytest.importorskip("x_transformers")
    stack = x_transformers.Encoder(dim=32, depth=2, heads=4, attn_dim_head=16)
    judge(stack, {"x": torch.randn(2, 20, 32)}, regions=0)


def test_language_model_with_sigmoid_attention():
    """Embeddings, positions and logits around it; tokens in, fp32 out."""
    x_transformers = pytest.importorskip("x_transformers")
    model = x_transformers.TransformerWrapper(
        num_tokens=50,
        max_seq_len=32,
        attn_layers=x_transformers.Decoder(
            dim=32, depth=2, heads=4, attn_dim_head=16, attn_sigmoid=True
        ),
    )
    judge(model, {"x": torch.randint(0, 50, (2, 20))}, regions=2)
