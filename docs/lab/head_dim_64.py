"""The Hopper forward at head dims 64 and 128, with and without its forms: TFLOP/s, by turns.

python docs/lab/head_dim_64.py
"""

from statistics import median

import torch
from triton.testing import do_bench

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.operands import Operands
from gdpa_inductor.program.factors import factored
from gdpa_inductor.program.score_mod import ScoreMod

SHAPES = ((32, 1024), (16, 2048), (4, 8192))  # batch, N
HEADS, TURNS = 4, 7


class Unscaled(Sm90Config):
    """Scores are multiplied by the scale."""

    query_factor = 1.0

    def factored(self, terms):
        return factored(terms)


class Whole(Unscaled):
    """And no tile is cut."""

    in_rounds = False


FORMS = {"as it was": Whole, "the last round is cut": Unscaled, "as it is": Sm90Config}


def operands(batch: int, length: int, dim: int) -> Operands[torch.Tensor]:
    shape = (batch, HEADS, length, dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return Operands(q, k, v, (), (), ScoreMod.parse(f"silu(mul(s,{dim**-0.5}))"))


def rate(o: Operands[torch.Tensor], kind: type[Sm90Config]) -> float:
    ms = do_bench(lambda: launch.forward(o, kind=kind), warmup=10, rep=40, return_mode="median")
    batch, heads, length, dim = o.query.shape
    return 4 * batch * heads * length**2 * dim / ms / 1e9


def main() -> None:
    print(torch.cuda.get_device_name(), torch.__version__)
    names = [*FORMS]
    for dim in (64, 128):
        for batch, length in SHAPES:
            o, found = operands(batch, length, dim), {name: [] for name in names}
            outputs = [launch.forward(o, kind=kind) for kind in FORMS.values()]
            assert all(torch.equal(outputs[0], x) for x in outputs)
            for turn in range(TURNS):
                first = turn % len(names)
                for name in names[first:] + names[:first]:
                    found[name].append(rate(o, FORMS[name]))
            rates = ", ".join(f"{name} {median(x):.0f}" for name, x in found.items())
            print(f"D = {dim}, N = {length}: {rates}", flush=True)


if __name__ == "__main__":
    main()
