"""One program from one seed.

    program  = operands, first product, steps, second product, tail, wrapping
    tail     = another layout | gating | residual | a linear layer | layer norm | nothing
    wrapping = none | autocast | activation checkpoint
    label    = fusable    every step is point-wise in the scores and nothing else sees them
             | refusable  one twist of `twists.REFUSABLES`, or a program of `others`
             | decoy      one twist of `twists.DECOYS`, or a program of `others`

The label is known by construction: a fusable program is made of fusable steps only; one twist makes
it a refusable program or a decoy. `operands`, `products`, `steps`, `twists` and `others` list their
own part of the grammar. Dtypes are mostly fp64, where a wrong rewrite cannot hide in rounding.
"""

import random

from tests.fuzz import others, products, steps, twists
from tests.fuzz.draft import DECOY, FUSABLE, REFUSABLE, Draft, Program, permute_text

SHARES = {FUSABLE: 0.64, REFUSABLE: 0.18, DECOY: 0.18}
WHOLE_SHARE = 0.3  # of the refusable and the decoys: not a twist but a program of its own
DTYPES = {"float64": 0.72, "float32": 0.18, "bfloat16": 0.10}


def generate(seed: int) -> Program:
    """The program of a seed: always the same."""
    rng = random.Random(seed)
    label, dtype = _draw(rng, SHARES), _draw(rng, DTYPES)
    sizes = _sizes(rng)
    draft = Draft(rng, sizes[0], dtype, dynamic=len(sizes) > 1)
    draft.feature(label, FUSABLE)
    if label != FUSABLE and draft.chance(WHOLE_SHARE):
        result = {REFUSABLE: others.whole_refusable, DECOY: others.whole_decoy}[label](draft)
    else:
        result = _region(draft, label)
        if label == FUSABLE and draft.chance(0.06):
            draft.feature("two regions")
            draft.extra.append(_region(draft, label))
    return _finished(draft, seed, result, sizes)


def _draw(rng: random.Random, shares: dict[str, float]) -> str:
    return rng.choices(list(shares), list(shares.values()))[0]


def _sizes(rng: random.Random) -> list[dict[str, int]]:
    """Small sizes; a fifth of the time all alike, so that no size can stand in for a dim."""
    model = {"h": rng.choice([1, 2, 3]), "g": rng.choice([2, 3]), "d": rng.choice([2, 3, 4, 8])}
    model["e"] = rng.choice([model["d"], 2, 3, 5])
    if rng.random() < 0.08:  # sizes that vary: all different, none 0 or 1
        return [
            {"b": b, "n": n, "m": m, **model}
            for b, n, m in (rng.sample(range(2, 8), 3) for _ in range(2))
        ]
    if rng.random() < 0.2:
        same = rng.choice([2, 3])
        return [dict.fromkeys("bnmhgde", same)]
    batch = {"b": rng.choice([1, 2, 3]), "n": rng.randint(2, 7), "m": rng.randint(2, 7)}
    if rng.random() < 0.25:
        batch["m"] = batch["n"]
    return [{**batch, **model}]


def _region(draft: Draft, label: str) -> str:
    """Two products and what stands between them; a twist among the steps unless it is fusable."""
    family = draft.pick(products.FAMILIES)
    draft.feature(f"product:{family.__name__}")
    draft.regions += 1
    made = family(draft)
    plan = steps.plan(draft)
    if label != FUSABLE:
        choices = twists.REFUSABLES if label == REFUSABLE else twists.DECOYS
        plan.insert(draft.rng.randint(0, len(plan)), draft.pick(choices))
    if not set(plan) - {steps.nothing, steps.reshape, steps.scale}:
        draft.feature("only a product of three", REFUSABLE)
    scores = made.scores
    for step in plan:
        scores = step(draft, scores)
    result = made.finish(products.restore(draft, scores, made.wanted))
    return _tail(draft, result, made.output)


def _tail(draft: Draft, result: str, dims: tuple[str, ...]) -> str:
    """What models do with the output."""
    style = draft.pick(["none", "none", "layout", "heads", "gate", "residual", "norm", "linear"])
    draft.feature(f"tail:{style}")
    spec = " ".join(dims)
    if style == "layout":
        return draft.let("o", permute_text(draft, result, dims, draft.shuffled(dims)))
    if style == "gate":
        return draft.let("o", f"{result} * F.silu({draft.operand('u', spec)})")
    if style == "residual":
        return draft.let("o", f"{draft.operand('u', spec)} + {result}")
    if style == "norm":
        # With an eps that counts: the norm of a row of two near values is all rounding.
        return draft.let("o", f"F.layer_norm({result}, {result}.shape[-1:], eps=1.0)")
    if style in ("heads", "linear") and sorted(dims) == sorted("bhne"):
        merged = permute_text(draft, result, dims, ("b", "n", "h", "e"))
        merged = draft.let("o", f"{merged}.reshape(b, n, h * e)")
        if style == "heads":
            return merged
        return draft.let("o", f"{merged} @ {draft.operand('w', 'h*e 5')}")
    return result


def _finished(draft: Draft, seed: int, result: str, sizes: list[dict[str, int]]) -> Program:
    dtype = draft.dtype
    if "randomness" in draft.features or "rounding" in draft.features:
        dtype = "float64"  # another precision would draw or round other values
    wrap = draft.pick([""] * 14 + ["checkpoint", "autocast"])
    if wrap == "autocast":
        # fp64 is left alone by autocast, and bf16 has nothing to gain from it.
        wrap, dtype = (wrap, "float32") if draft.label == FUSABLE else ("", dtype)
    if wrap == "checkpoint" and (draft.extra or draft.label != FUSABLE):
        wrap = ""
    draft.feature(f"wrap:{wrap or 'none'}")
    training = draft.training and draft.rng.random() < 0.8
    return Program(
        seed=seed,
        label=draft.label,
        features=(*draft.features, dtype, *(["dynamic"] if len(sizes) > 1 else [])),
        source=draft.source(result, wrap),
        specs=dict(draft.specs),
        sizes=tuple(sizes),
        dtype=dtype,
        training=training,
        regions=draft.regions,
        gradient_relative=draft.gradient_relative,
    )
