"""The rows of `bench models`: public models as they are published.

The list was fixed before the first measurement.
"""

import dataclasses
from typing import Any

from ..cases import Case
from . import hstu, packages, plain
from .model import Built, Model

__all__ = ["MODELS", "Built", "Model", "build"]


def width(case: Case) -> int:
    return case.heads * case.head_dim


def groups(case: Case) -> int:
    return case.batch * case.length // packages.group(case)


_SMALL = (2, 2, 64, 16)
_ENCODER = ((16, 8, 2048, 64), _SMALL)
# GAU is causal, with one head and one bias for all samples. Values are twice as wide as the model.
_GAU: dict[str, Any] = {"variant": "bias", "heads": 1, "value_dim": lambda case: 2 * width(case)}
_FLASH = _GAU | {"activation": "relu2", "batch": groups, "length": packages.group}
_POOL: dict[str, Any] = {"activation": "gelu", "length": plain.seeds, "keys": lambda c: c.length}
_PFFN: dict[str, Any] = {"activation": "gelu", "keys": plain.tokens}
_TARGET = {"activation": "sigmoid", "length": plain.candidates, "keys": lambda c: c.length}
_JAGGED = {"variant": "causal", "fill": 0.5}

# The profile recognizes scores by their number of elements. So the sizes are chosen such that no
# other tensor of a model has that number.
MODELS: dict[str, Model] = {
    "hstu-padded": Model(hstu.padded, (16, 4, 2048, 128), _SMALL, 2, ({"variant": "bias"},)),
    # Dynamo's graph ends within a layer, and both layers share one graph.
    "hstu-research": Model(
        hstu.research, (16, 4, 1024, 128), _SMALL, 1, ({"variant": "buckets"},), fill=0.5
    ),
    "hstu-production": Model(hstu.production, (64, 4, 1024, 128), _SMALL, 1, (_JAGGED,), fill=0.5),
    "hstu-production-targets": Model(
        hstu.production_targets, (64, 4, 1024, 128), _SMALL, 1, (_JAGGED,), fill=0.5
    ),
    "sigmoid-encoder": Model(
        packages.encoder_sigmoid, *_ENCODER, 2, ({"activation": "sigmoid"},)
    ),
    "sigmoid-decoder": Model(
        packages.decoder_sigmoid, *_ENCODER, 2, ({"activation": "sigmoid", "variant": "causal"},)
    ),
    "relu2-encoder": Model(packages.encoder_relu2, *_ENCODER, 2, ({"activation": "relu2"},)),
    "laplace-encoder": Model(packages.encoder_laplace, *_ENCODER, 2, ({"activation": "laplace"},)),
    "gau-relu2": Model(
        packages.gau, (8, 4, 4096, 128), _SMALL, 2, (_GAU | {"activation": "relu2"},)
    ),
    "gau-laplace": Model(
        packages.gau_laplace, (8, 4, 4096, 128), _SMALL, 2, (_GAU | {"activation": "laplace"},)
    ),
    "flash": Model(packages.flash, (16, 4, 2048, 128), _SMALL, 2, (_FLASH,)),
    "retention": Model(
        packages.retention, (8, 8, 2048, 128), _SMALL, 1,
        ({"activation": "identity", "variant": "causal"},),
    ),
    "rebased": Model(
        packages.rebased, (8, 8, 2048, 64), _SMALL, 1,
        ({"activation": "square", "variant": "causal"},),
    ),
    "set-transformer": Model(plain.pma, (256, 4, 1024, 128), _SMALL, 1, (_POOL,)),
    "pffn": Model(plain.pffn, (128, 4, 1024, 128), _SMALL, 1, (_PFFN,)),
    "interformer": Model(
        plain.interformer, (64, 4, 1024, 128), _SMALL, 6, ({}, _POOL, _PFFN)
    ),
    "relu-vit": Model(plain.vit, (16, 12, 1024, 64), _SMALL, 2, ({"activation": "relu"},)),
    "target-attention": Model(plain.target, (512, 4, 1024, 64), _SMALL, 1, (_TARGET,)),
}  # fmt: skip


def build(case: Case) -> Built:
    """The model of a case. Raises ImportError if its package or file is not available."""
    return MODELS[case.activation].build(dataclasses.replace(case, variant="model"))
