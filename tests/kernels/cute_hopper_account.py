"""`python -m tests.kernels.cute_hopper_account --write`: what the tiles of the Hopper forward take.

A table for docs/hopper.md, from the configurations alone. tests/kernels/test_cute_wide.py holds the
page to it.
"""

from dataclasses import replace
from pathlib import Path

from gdpa_inductor.kernels.cute.sm90.config import BARRIERS, HALF, ROWS, Sm90Config

from .cute_account import BIAS, SILU, publish

DOCS = Path(__file__).parents[2] / "docs" / "hopper.md"
NAME = "tiles"
DIMS = ((64, 64), (96, 96), (128, 128), (160, 160), (192, 128), (192, 192), (224, 224), (256, 256))
KIB = 1024


def row(config: Sm90Config) -> str:
    c, d, dv = config, config.padded_head_dim, config.padded_value_dim
    stages = c.key_stages // 2 if c.overlaid else c.key_stages
    ring = [c.cols * (d + dv)] if c.overlaid else [c.cols * max(d, dv)]
    queries, output = 2 * ROWS * d * c.query_stages, 2 * ROWS * dv * c.tiles
    keys, bias = 2 * sum(ring) * stages, 2 * ROWS * HALF * c.tiles * c.bias_stages
    shared = [max(queries, output), 0] if c.overlaid else [queries, output]
    whole = sum(shared) + keys + bias + BARRIERS
    registers = dv // 2 + c.cols // 2 + 2 * (c.cols // 4)
    cells = [
        f"{c.head_dim}, {c.value_dim}",
        f"{c.tiles * ROWS} × {c.cols}",
        f"{shared[0] / KIB:g}" + (" with O" if c.overlaid else f" ({c.query_stages // c.tiles})"),
        "" if c.overlaid else f"{output / KIB:g}",
        f"{keys / KIB:g} ({stages}{' each' if c.overlaid else ''})",
        f"{bias / KIB:g} ({c.bias_stages})" if c.bias_stages else "",
        f"{whole / KIB:g}",
        str(registers),
    ]
    return f"| {' | '.join(cells)} |"


def tables() -> str:
    heads = ["D, Dv", "rows × keys", "Q", "O", "K and V", "bias", "in all", "registers"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for d, dv in DIMS:
        plain = Sm90Config("bfloat16", d, dv, SILU)
        biased = replace(plain, program=BIAS, aux=("bfloat16",), vectors=frozenset([0]))
        lines += [row(plain), row(biased)]
    return "\n".join(lines)


if __name__ == "__main__":
    publish({NAME: tables}, __doc__, DOCS)
