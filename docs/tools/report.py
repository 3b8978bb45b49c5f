"""README's picture of a report: `python -m docs.tools.report` writes docs/charts/report.png.

It needs Chromium on PATH, or its path as an argument.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import gdpa_inductor

PICTURE = Path(__file__).parents[1] / "charts" / "report.png"
MODEL = """\
import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, heads=4, length=1024, width=256):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 4 * width)
        self.bias = nn.Parameter(torch.zeros(heads, length, length))

    def forward(self, x):
        gate, *qkv = F.silu(self.project(x)).chunk(4, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv)
        weights = F.silu(q @ k.mT + self.bias) / x.shape[1]
        return x + (weights.tril() @ v).transpose(1, 2).flatten(2) * gate


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer())
        self.seeds = nn.Parameter(torch.zeros(1, 64, 256))

    def forward(self, x):
        x = self.layers(x)
        seeds = self.seeds.expand(x.shape[0], -1, -1)
        return F.alpha_dropout(F.sigmoid(seeds @ x.mT), 0.1, self.training) @ x
"""


def report(folder: Path) -> gdpa_inductor.Report:
    """Of two layers of HSTU, and a pooling under alpha dropout."""
    path = folder / "model.py"
    path.write_text(MODEL)
    spec = importlib.util.spec_from_file_location("model", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return gdpa_inductor.explain(module.Model())(torch.randn(2, 1024, 256))


def main(chromium: str | None) -> None:
    if not chromium:
        sys.exit("chromium is not on PATH")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)  # so that places are written from there
        page = report(folder).to_html(folder / "report.html")
        size = ["--window-size=1020,576", "--force-device-scale-factor=1.5", "--hide-scrollbars"]
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder / 'own'}",
        ]
        command = [chromium, *options, *size, f"--screenshot={PICTURE}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium"))
