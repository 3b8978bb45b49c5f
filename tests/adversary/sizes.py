"""Sizes of programs: small ones, and those of kernels; lengths of sequences.

The letters: b batch, h heads, g groups of heads, n rows, m keys, d and e the widths of query and
value. h, g, d and e are the model's: they do not change from call to call.
"""

from random import Random

from .draft import Draft

STATIC = "hgde"
HEAD_DIMS = (8, 16, 24, 32, 40, 64, 64, 96, 128, 128, 192)
LENGTHS = (1, 2, 15, 17, 63, 64, 65, 100, 127, 128, 129, 191, 256, 300, 513)


def draw_sizes(draft: Draft) -> None:
    """Sizes of the one call, or of the two calls of a program of varying sizes."""
    random = draft.random
    varies = not draft.hostile and draft.coin(0.2)
    drawn = [(_of_kernels if draft.scale == "kernels" else _small)(random)]
    if draft.fact("square", False) or draft.coin(0.25):
        drawn[0]["m"] = drawn[0]["n"]
    if draft.fact("same_width", draft.coin()):
        drawn[0]["e"] = drawn[0]["d"]
    drawn[0].update(draft.settled.get("sizes", {}))
    if varies:  # all different, none 0 or 1
        drawn = [drawn[0] | _three(draft) for _ in range(2)]
    elif not draft.hostile and draft.scale == "small" and draft.coin(0.2):
        # All alike, so that no size can stand in for a dim.
        drawn = [dict.fromkeys("bnmhgde", draft.pick(2, 3))]
    grown = draft.fact("grown", ())
    if grown:
        letters, by = grown
        alike = drawn[0]["n"] == drawn[0]["m"] and set(letters) & {*"nm"}
        letters = {*letters, *("nm" if alike else "")}
        drawn.append({x: size + by * (x in letters) for x, size in drawn[0].items()})
    draft.sizes, *draft.further = drawn


def _three(draft: Draft) -> dict[str, int]:
    if draft.scale == "kernels":
        sizes = {"b": draft.random.randint(2, 3)}
        return sizes | {x: max(2, long(draft.random)) for x in "nm"}
    return dict(zip("bnm", draft.random.sample(range(2, 8), 3)))


def _small(random: Random) -> dict[str, int]:
    return {
        "b": random.choice((1, 2, 2, 3)),
        "h": random.choice((1, 2, 3)),
        "g": random.choice((2, 3)),
        "n": random.randint(2, 8),
        "m": random.randint(2, 8),
        "d": random.choice((2, 3, 4, 8)),
        "e": random.choice((2, 3, 4, 5)),
    }


def _of_kernels(random: Random) -> dict[str, int]:
    return {
        "b": random.randint(1, 3),
        "h": random.choice((1, 2, 4)),
        "g": random.choice((1, 2)),
        "n": long(random),
        "m": long(random),
        "d": random.choice(HEAD_DIMS),
        "e": random.choice(HEAD_DIMS),
    }


def long(random: Random) -> int:
    """A length as kernels meet it."""
    return random.choice((random.choice(LENGTHS), random.randint(1, 600)))


def short_batches(draft: Draft) -> list[tuple[int, ...]]:
    """Lengths of one batch, or of two for which one compile must do."""

    def batch() -> tuple[int, ...]:
        lengths = tuple(draft.pick(0, 1, 1, 2, 3, 4, 5, 7) for _ in range(draft.pick(2, 3, 4)))
        return lengths if sum(lengths) > 1 else (*lengths[:-1], 3)

    return [batch(), batch()] if draft.coin(0.25) else [batch()]


def long_batches(draft: Draft) -> list[tuple[int, ...]]:
    """Lengths of one to three batches, with zeros, of any number of sequences and tokens."""
    random = draft.random
    count = random.randint(1, 7)

    def batch() -> tuple[int, ...]:
        style = draft.pick("any", "any", "skewed", "short", "alike", "one")
        size = count if draft.coin(0.7) else random.randint(1, 7)
        lengths = {
            "any": [long(random) * draft.coin(0.8) for _ in range(size)],
            "skewed": [*(random.randint(0, 3) for _ in range(size)), random.randint(300, 900)],
            "short": [random.randint(0, 40) for _ in range(size)],
            "alike": [long(random)] * size,
            "one": [0] * size + [long(random)] + [0] * random.randint(0, 2),
        }[style]
        random.shuffle(lengths)
        return tuple(lengths) if sum(lengths) > 1 else (*lengths, 17)

    return [batch() for _ in range(draft.pick(1, 1, 2, 2, 3))]
