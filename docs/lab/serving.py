"""Few queries over a cache: `python docs/lab/serving.py`, on an NVIDIA GPU.

Times the Triton forward by configuration and by the number of shares of the keys, beside a copy.
"""

import torch
import torch.nn.functional as F
import triton

from gdpa_inductor import lowerings
from gdpa_inductor.kernels.triton import splits
from gdpa_inductor.kernels.triton.configs import Config
from gdpa_inductor.lowerings.triton import launch

HEADS, DIM, KEYS = 4, 128, 4096
PROGRAM = "silu(mul(s,0.08838834764831845))"
# queries, sequences, configuration, shares
CASES = [
    (1, 256, (16, 128, 4, 2), 1),
    *((16, 256, (16, 64, 4, 3), count) for count in (1, 2, 4)),
    *((16, 256, config, 1) for config in ((16, 128, 4, 2), (16, 128, 4, 3), (16, 32, 4, 4))),
    (128, 256, (128, 64, 4, 2), 1),
    (128, 256, (128, 32, 4, 4), 1),
    *((16, 8, (16, 128, 4, 2), count) for count in (1, 4, 8, 16)),
    *((128, 8, (128, 64, 8, 3), count) for count in (1, 8)),
]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def milliseconds(call) -> float:
    call()
    found: float = triton.testing.do_bench(call, warmup=25, rep=100, return_mode="median")
    return found


def measured(queries: int, batch: int, config: tuple[int, ...], count: int, jagged: bool) -> float:
    launch.configs = lambda *_: [Config(*config)]
    splits.shares = lambda *_: count
    torch._dynamo.reset()
    query = drawn(batch, HEADS, queries, DIM)
    sizes = (batch * KEYS, HEADS, DIM) if jagged else (batch, HEADS, KEYS, DIM)
    key, value = drawn(*sizes), drawn(*sizes)
    ends = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * KEYS if jagged else None
    rest = ("kernel=triton,strict=True", None, ends, 0, KEYS if jagged else 0)

    @torch.compile
    def attend(query, key, value):
        return torch.ops.gdpa.attention(query, key, value, [], [], PROGRAM, *rest)

    with torch.no_grad():
        found = attend(query, key, value)[-1]
        last = [x[-KEYS:].transpose(0, 1) if jagged else x[-1] for x in (key, value)]
        k, v = (x.float() for x in last)
        exact = F.silu(query[-1].float() @ k.mT * DIM**-0.5) @ v
        assert (found - exact).norm() < 0.01 * exact.norm()
        return milliseconds(lambda: attend(query, key, value))


def copied() -> float:
    """GB/s that are read and written."""
    source, target = (torch.empty(1 << 30, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return 2 * source.nbytes / milliseconds(lambda: target.copy_(source)) / 1e6


def main() -> None:
    lowerings.register()
    torch._inductor.config.force_disable_caches = True  # they do not know what is replaced here
    print(f"copy {copied():.0f} GB/s")
    for queries, batch, config, count in CASES:
        for jagged in (False, True):
            ms = measured(queries, batch, config, count, jagged)
            size = 4 * batch * HEADS * KEYS * DIM
            rates = f"{size / ms / 1e6:.0f} GB/s, {queries * size / ms / 1e9:.0f} TFLOP/s"
            kind = "jagged" if jagged else "dense"
            print(f"{queries} x {batch} {kind}, {config}, {count} shares: {ms:.3f} ms, {rates}")


if __name__ == "__main__":
    main()
