"""docs/recipes/huggingface.md: the Trainer and Accelerate refuse the backend's name, and train a
model that compiles itself, or that the pass for the whole process rewrites.

transformers and accelerate are no dependencies of the tests: `pip install transformers accelerate`.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gdpa_inductor

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

LENGTH, LAYERS, TOKENS = 64, 2, 50


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        return x + self.out((F.silu(q @ k.mT) / LENGTH @ v).transpose(1, 2).flatten(2))


class Model(transformers.PreTrainedModel):
    config_class = transformers.PretrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embedding, self.head = nn.Embedding(TOKENS, 64), nn.Linear(64, TOKENS)
        self.layers = nn.Sequential(*(Attention() for _ in range(LAYERS)))
        self.post_init()

    def forward(self, input_ids, labels=None):
        logits = self.head(self.layers(self.embedding(input_ids)))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def model() -> Model:
    torch.manual_seed(0)
    return Model(transformers.PretrainedConfig())


def data() -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(TOKENS, (LENGTH,), generator=draw) for _ in range(6)]
    return [{"input_ids": row, "labels": row} for row in rows]


def losses(trained: Model, folder: Any, **more: Any) -> list[float]:
    """Of three steps of the Trainer."""
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        save_strategy="no", logging_steps=1, disable_tqdm=True, learning_rate=1e-2, **more,
    )  # fmt: skip
    trainer = transformers.Trainer(model=trained, args=arguments, train_dataset=data())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture
def whole_process(monkeypatch):
    monkeypatch.setenv("GDPA_PROFIT", "0")
    rewrite = gdpa_inductor.GDPAPass(expect=LAYERS)
    everywhere = torch._inductor.config.patch(pre_grad_custom_pass=rewrite)
    with everywhere, torch._inductor.utils.fresh_cache():
        yield


def test_the_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'GDPA' is not a valid DynamoBackend"):
        losses(model(), tmp_path, torch_compile=True, torch_compile_backend="gdpa")
    with pytest.raises(ValueError, match="'GDPA' is not a valid DynamoBackend"):
        accelerate.Accelerator(cpu=True, dynamo_backend="gdpa")


def compiled() -> Model:
    compiles_itself = model()
    options = {"gdpa.expect": LAYERS, "gdpa.profit": False}
    compiles_itself.compile(backend="gdpa", options=options)
    return compiles_itself


def test_the_trainer_trains_a_model_that_compiles_itself(tmp_path):
    assert losses(compiled(), tmp_path) == pytest.approx(losses(model(), tmp_path), rel=1e-3)
    assert gdpa_inductor.regions() == LAYERS


@pytest.mark.usefixtures("whole_process")
def test_the_trainer_trains_under_the_pass_for_the_whole_process(tmp_path):
    assert losses(model(), tmp_path, torch_compile=True)[-1] < 4
    assert gdpa_inductor.regions() == LAYERS


def steps(accelerator: Any, trained: Model) -> list[float]:
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    loader = torch.utils.data.DataLoader(data(), batch_size=2)
    trained, optimizer, loader = accelerator.prepare(trained, optimizer, loader)
    losses = []
    for batch in loader:
        loss = trained(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_accelerate_prepares_a_model_that_compiles_itself():
    eager = steps(accelerate.Accelerator(cpu=True), model())
    assert steps(accelerate.Accelerator(cpu=True), compiled()) == pytest.approx(eager, rel=1e-3)
    assert gdpa_inductor.regions() == LAYERS


@pytest.mark.usefixtures("whole_process")
def test_accelerate_compiles_under_the_pass_for_the_whole_process():
    accelerator = accelerate.Accelerator(cpu=True, dynamo_backend="inductor")
    assert len(steps(accelerator, model())) == 3 and gdpa_inductor.regions() == LAYERS
