"""Programs of the grammars at sizes of kernels, in bf16 or fp32, on a device."""

import dataclasses
import random
import re

from tests.fuzz.draft import STATIC, Program
from tests.fuzz.grammar import generate
from tests.fuzz.jagged import generate_jagged

HEAD_DIMS = (8, 16, 24, 32, 40, 64, 64, 96, 128, 128, 192)
LENGTHS = (1, 2, 15, 17, 63, 64, 65, 100, 127, 128, 129, 191, 256, 300, 513)
_FACTORY = re.compile(r"\btorch\.(arange|empty|eye|full|linspace|ones|tensor|zeros)\(")


def dense(seed: int, device: str) -> Program:
    """The dense program of a seed."""
    program, rng = generate(seed), random.Random(seed)
    sizes = {"h": rng.choice([1, 2, 4]), "g": rng.choice([1, 2]), "d": rng.choice(HEAD_DIMS)}
    sizes["e"] = rng.choice([sizes["d"], sizes["d"], rng.choice(HEAD_DIMS)])
    drawn = [{"b": rng.randint(1, 3), "n": _length(rng), "m": _length(rng)} for _ in program.sizes]
    if rng.random() < 0.3:
        drawn = [{**each, "m": each["n"]} for each in drawn]
    if len(drawn) > 1:  # marked as varying: then none may be 1
        drawn = [{letter: max(2, size) for letter, size in each.items()} for each in drawn]
    source = program.source.replace('torch.autocast("cpu"', f'torch.autocast("{device}"')
    for letter in STATIC:
        source = re.sub(rf"^(\s+{letter}) = \d+$", rf"\1 = {sizes[letter]}", source, flags=re.M)
    autocast = "wrap:autocast" in program.features
    return dataclasses.replace(
        program, source=_made_on(source, device),
        dtype="float32" if autocast else _dtype(rng),
        sizes=tuple({**sizes, **each} for each in drawn),
    )  # fmt: skip


def jagged(seed: int, device: str) -> Program:
    """The jagged program of a seed, called with one, two or three batches."""
    rng = random.Random(f"grown {seed}")
    padding = rng.choice(["wrapped", "gdpa"])
    program = generate_jagged(seed, padding)
    sizes = {"h": rng.choice([1, 2, 4]), "d": rng.choice(HEAD_DIMS), "m": _length(rng)}
    sizes["e"] = rng.choice([sizes["d"], sizes["d"], rng.choice(HEAD_DIMS)])
    sizes["s"] = _length(rng)
    lengths = _batches(rng)
    padded = [max(2, max(batch) + rng.choice([0, 0, 1, 7, 64])) for batch in lengths]
    if padding == "gdpa" and rng.random() < 0.3:  # rows are cut off
        padded = [max(2, rng.randint(n // 3, n)) for n in padded]
    if rng.random() < 0.7:
        padded = [max(padded)] * len(padded)
    source = program.source.replace("abs() <= 2", f"abs() <= {rng.choice([0, 3, 40, 127, 200])}")
    # Inductor's own error in a long sum is larger than eager's.
    source = source.replace("q.sum()", "q[..., :1].cos()").replace("out.sum()", "out[0, 0].sum()")
    return dataclasses.replace(
        program, source=_made_on(source, device), dtype=_dtype(rng), lengths=lengths,
        sizes=tuple({**sizes, "n": n} for n in padded),
    )  # fmt: skip


def _batches(rng: random.Random) -> tuple[tuple[int, ...], ...]:
    """Lengths of one to three batches, with zeros, of any number of sequences and tokens."""
    count = rng.randint(1, 7)

    def batch() -> tuple[int, ...]:
        style = rng.choice(["any", "any", "skewed", "short", "alike", "one"])
        size = count if rng.random() < 0.7 else rng.randint(1, 7)
        lengths = {
            "any": [_length(rng) * (rng.random() < 0.8) for _ in range(size)],
            "skewed": [*(rng.randint(0, 3) for _ in range(size)), rng.randint(300, 900)],
            "short": [rng.randint(0, 40) for _ in range(size)],
            "alike": [_length(rng)] * size,
            "one": [0] * size + [_length(rng)] + [0] * rng.randint(0, 2),
        }[style]
        rng.shuffle(lengths)
        return tuple(lengths) if sum(lengths) > 1 else (*lengths, 17)

    return tuple(batch() for _ in range(rng.choice([1, 1, 2, 2, 3])))


def _made_on(source: str, device: str) -> str:
    """The same source, which makes its tensors on a device."""
    source = _FACTORY.sub(rf'functools.partial(torch.\1, device="{device}")(', source)
    return f"import functools\n{source}"


def _dtype(rng: random.Random) -> str:
    return rng.choice(["bfloat16", "bfloat16", "float32"])


def _length(rng: random.Random) -> int:
    return rng.choice([rng.choice(LENGTHS), rng.randint(1, 600)])
