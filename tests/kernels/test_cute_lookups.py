"""Programs that look up learned tables, on the emulator: forwards and backwards of both GPUs."""

import dataclasses

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.backward import table_gradients
from gdpa_inductor.kernels.cute.backward.roots import no_such_biases
from gdpa_inductor.kernels.cute.backward.table_gradients import distance
from gdpa_inductor.kernels.cute.config import TableLayout
from gdpa_inductor.kernels.cute.places import copy_of, unchecked
from gdpa_inductor.kernels.cute.plan import plan_of
from gdpa_inductor.kernels.cute.sm90.config import HeldTable, Sm90Config, TableRoom
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config
from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import ScoreMod
from tests.tolerances import error_of

from .cute_backward_cases import exact
from .cute_cases import check_output, formula
from .cute_kinds import OneKernel, TwoKernels
from .cute_memory import fresh_kernels, gradients
from .lookup_cases import BF16, BOTH, CASES, CAUSAL, FP32, POSITION, SILU, TIME, U8, Case, looked_up
from .marks import slow_but
from .test_cute_forward import forward

KINDS = {"sm90": Sm90Config, "sm100": Sm100Config}
BACKWARDS = {"sm90": Sm90Config, "two kernels": TwoKernels, "one kernel": OneKernel}
QUICK = ("positions, causal", "positions and times", "jagged")
fresh = pytest.fixture(scope="module", autouse=True)(fresh_kernels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", slow_but(QUICK, CASES))
def test_forward(name: str, kind: str) -> None:
    case = CASES[name]
    _, o = case.call()
    check_output(forward(case, o, kind=KINDS[kind]), o)


@pytest.mark.parametrize("kind", BACKWARDS)
@pytest.mark.parametrize("name", slow_but(QUICK, CASES))
def test_gradients_of_matrices(name: str, kind: str) -> None:
    case = CASES[name]
    grad, o = case.call()
    needs = (True,) * 3 + (False,) * len(o.aux)
    check(case, grad, o, needs, emulated(case, grad, o, needs, kind))


def emulated(case: Case, grad, o, needs, kind: str, **options) -> list[torch.Tensor]:
    batch = next((len(x) - 1 for x in o.lengths[:2] if x is not None), 0)
    order = torch.arange(batch).flip(0) if o.jagged else None
    ctas, schedule = (2, "lazy") if kind == "two kernels" else (1, "random")
    options = {"ctas": ctas, "schedule": schedule, "fast": case.fast, **options}
    return gradients(grad, o, needs, order, kind=BACKWARDS[kind], **options)


def check(case: Case, grad, o, needs, results) -> None:
    """By the error rule."""
    wide, eager = (formula(o, x, grad, learned=True)[1:] for x in (torch.float64, case.dtype))
    real = [*needs[:3], *[y for x, y in zip(o.aux, needs[3:]) if x.is_floating_point()]]
    wide, eager = ([x for x, need in zip(y, real, strict=True) if need] for y in (wide, eager))
    for number, (mine, theirs, truth) in enumerate(zip(results, eager, wide, strict=True)):
        wrong = error_of(mine, theirs, truth, direction="backward")
        assert wrong is None, (number, wrong)


WIDE = {
    "bytes": dataclasses.replace(CASES["times"], dims=(192, 256)),
    "16 bits": dataclasses.replace(CASES["places of 16 bits"], dims=(256, 256)),
    "odd keys": dataclasses.replace(CASES["times, odd keys"], dims=(256, 64)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WIDE)
def test_forward_with_wide_heads(name: str, kind: str) -> None:
    _, o = WIDE[name].call()
    check_output(forward(WIDE[name], o, kind=KINDS[kind]), o)


HELD = {
    "times": {0},
    "times, odd keys": {0},
    "positions": set(),
    "positions and times": {2},
    "every byte": {0},
    "places of tokens": {0},
    "a table too large": set(),
    "two tables of one place": {0, 2},
    "a table of each query": set(),
}
TILED = {
    "times": 1,
    "times, odd keys": None,
    "positions": None,
    "places of tokens": None,
    "places of 16 bits": 1,
    "a table beside a bias": 1,
}


def test_tables_and_places_in_shared_memory() -> None:
    """Tables whose places are operands, unless too large; places at multiples of 16 bytes."""
    configs = {
        name: plan_of(case.call()[1], True, True, Sm90Config).config
        for name, case in CASES.items()
        if name in (*HELD, *TILED)
    }
    tables = {name: {x.number for x in configs[name].shared_tables.tables} for name in HELD}
    assert tables == HELD
    assert {name: configs[name].tiled for name in TILED} == TILED


@pytest.mark.parametrize(
    ("size", "places", "tables", "replicas"),
    [
        (8320, [130], 1, 16), (8319, [130], 1, 8), (520, [130], 1, 1), (519, [130], 0, 16),
        (10000, [], 0, 16), (2000, [130, 401], 1, 2), (-5, [4], 0, 1),
    ],
)  # fmt: skip
def test_room_for_tables(size: int, places: list[int], tables: int, replicas: int) -> None:
    held = [HeldTable(i, x - 1, 1, x, True) for i, x in enumerate(places)]
    room = TableRoom.within(size, held)
    assert (len(room.tables), room.replicas) == (tables, replicas)
    assert room.size <= max(size, 0)


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128), (256, 256), (8, 256)])
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
@pytest.mark.parametrize("vectors", [[1], []], ids=["tiled", "by elements"])
def test_tables_cost_no_buffers_of_keys(dims, dtype: str, vectors: list[int]) -> None:
    program, aux = TIME + SILU.format("lookup(a0,a1)"), ("float32", dtype)
    lookups = (TableLayout(0, 129, 1),)
    config = Sm90Config(
        "bfloat16", *dims, program, aux, vectors=frozenset(vectors), lookups=lookups
    )
    assert config.key_stages >= 4
    assert config.bias_stages == 0 if config.tiled is None else config.bias_stages >= 2
    assert config.shared_tables.tables or max(dims) > 128 or dtype == "int16"


@pytest.mark.parametrize(
    ("place", "dtype", "size", "places", "checked"),
    [
        ("a1", "uint8", 129, 256, False), ("a1", "uint8", 256, 256, False),
        ("a1", "uint8", 3000, 256, False), ("add(a1,1)", "uint8", 129, 130, True),
        ("add(a1,128)", "int8", 129, 256, False), ("a1", "int8", 129, 130, True),
        ("a1", "int16", 129, 130, True), ("add(a1,32768)", "int16", 70000, 65536, False),
    ],
)  # fmt: skip
def test_places_of_a_copy(place: str, dtype: str, size: int, places: int, checked: bool) -> None:
    """All that there may be, if they are few."""
    program = f"a0:f[t]; a1:i[b,q_idx,kv_idx]; silu(add(s,lookup(a0,{place})))"
    config = Sm90Config("bfloat16", 64, 64, program, ("float32", dtype))
    assert copy_of(config, TableLayout(0, size, 1)) == (places, checked)


QUERY_TILES = {
    "positions": 3,
    "clipped distances": 3,
    "positions and times": 2,
    "times": 2,
    "places of tokens": 2,
    "positions and times, head dim 128": 2,
}


def test_two_warpgroups_look_up_places_of_operands() -> None:
    """They are 13 % faster than three with both tables at head dim 64: docs/lab, 2026-11-30."""
    configs = {
        name: plan_of(CASES[name].call()[1], True, True, Sm90Config).config for name in QUERY_TILES
    }
    assert {name: x.tiles for name, x in configs.items()} == QUERY_TILES


BANDED = {
    "positions": {0},
    "positions and times": {0},
    "positions and times, head dim 128": {0},
    "clipped distances": {0},
    "the other direction, for all heads": {0},
    "jagged": {0},
    "times": set(),
    "places of tokens": set(),
    "a table of each query": set(),
}


def test_tables_of_distances_in_shared_memory() -> None:
    """In a forward; in a backward up to head dim 64."""
    configs = {
        name: plan_of(CASES[name].call()[1], True, True, Sm90Config).config for name in BANDED
    }
    assert {name: set(x.banded) for name, x in configs.items()} == BANDED
    for name, config in configs.items():
        backward = dataclasses.replace(config, kernel="backward")
        assert backward.banded == (config.banded if config.head_dim == 64 else set()), name


def test_look_ups_without_a_check() -> None:
    """Of bytes in a table of 256, and of positions on tiles whose places are all in the table."""
    numbers = {}
    for name, case in CASES.items():
        config = plan_of(case.call()[1], True, True, Sm100Config).config
        numbers[name] = [set(unchecked(config, always).tables) for always in (True, False)]
    assert numbers["every byte"] == [{0}, {0}]
    assert numbers["times"] == [set(), set()]
    assert numbers["positions and times"] == [set(), {0}]
    assert numbers["places of tokens"] == [set(), set()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_outside_of_the_table_is_nan(kind: str) -> None:
    """And is not read: the emulator sees reads of memory that is not the table's."""
    case = dataclasses.replace(CASES["times"], tables=(60,), heads=1, key_heads=1)
    _, o = case.call()
    o.aux[1][0, 5, 3], o.aux[1][0, 69, 143] = 60, 255
    result = forward(case, o, kind=KINDS[kind])
    outside = (o.aux[1] >= 60).any(-1)[0]
    assert outside.sum() == 2
    assert result[0, 0].isnan().all(-1).equal(outside)
    assert result[0, 0].isnan().any(-1).equal(outside)


LEARNED = list(CASES)
LEARNED.remove("a table of each query")
LEARNED.remove("rounded times")  # These two are not added to the score.
LEARNED.remove("two tables of one place")
LEARNED.remove("fp16, exact functions")  # of fp64, which what is stored in 16 bits cannot serve
QUICK_LEARNED = ("positions and times", "places of tokens", "jagged")


@pytest.mark.parametrize("kind", BACKWARDS)
@pytest.mark.parametrize("name", slow_but(QUICK_LEARNED, LEARNED))
def test_gradients_of_tables(name: str, kind: str) -> None:
    case = CASES[name]
    grad, o = case.call()
    needs = (True,) * 3 + tuple(x.is_floating_point() for x in o.aux)
    check(case, grad, o, needs, emulated(case, grad, o, needs, kind))


RELU = "relu(add(s,{}))"
SHARED = "a0:f[t]; a1:i[b,q_idx,kv_idx]; a2:f[t]; "
BESIDE = "a0:f[h,q_idx,kv_idx]; a1:f[h,t]; "
SUMS = f"add({POSITION.format(150)},lookup(a2,a1))"
MASKED = BOTH + "a3:b[{}]; where(a3,relu(add(s,{})),0.0)"
EXACT = {
    "each head has tables": looked_up(
        BOTH + CAUSAL.format(RELU.format(SUMS)), (300, 40), (FP32, U8, BF16), batch=3, heads=4,
        key_heads=2, rows=150, keys=136,
    ),
    "all heads share tables": looked_up(
        SHARED + RELU.format(SUMS), (290, 33), (BF16, U8, FP32), batch=2, heads=3, rows=133,
        keys=150,
    ),
    "batches at a time": looked_up(
        SHARED + f"where(ge(h,1),{RELU.format(SUMS)},0.0)", (290, 33), (BF16, U8, FP32), batch=3,
        heads=2, rows=133, keys=150,
    ),
    "a large table": looked_up(TIME + RELU.format("lookup(a0,a1)"), (2000,), (FP32, torch.int16)),
    "all batches have the same places": looked_up(
        "a0:f[t,h]; a1:i[q_idx,kv_idx]; " + CAUSAL.format(RELU.format("lookup(a0,a1)")), (2000,),
        (FP32, torch.int16), batch=3, rows=150, keys=150,
    ),
    "all batches have the same places, some at a time": looked_up(
        "a0:f[t,h]; a1:i[q_idx,kv_idx]; " + f"where(ge(h,1),{RELU.format('lookup(a0,a1)')},0.0)",
        (99,), (FP32, U8), batch=3, rows=70, keys=133,
    ),
    "jagged": looked_up(
        BOTH + CAUSAL.format(RELU.format(SUMS)), (300, 40), (FP32, U8, FP32), heads=2,
        rows=(150, 0, 37, 1), keys=(150, 0, 37, 1),
    ),
    "jagged, of tokens": looked_up(
        "a0:f[t]; a1:i[q]; a2:i[b,kv_idx]; " + RELU.format("lookup(a0,add(sub(a1,a2),9))"), (19,),
        (FP32, torch.int32, U8), heads=2, key_heads=1, rows=(40, 150, 0, 30), keys=(140, 37, 9, 0),
        largest=10,
    ),
    "jagged queries beside a bias": looked_up(
        "a0:f[h,kv_idx]; a1:f[h,t]; "
        + RELU.format("add(a0,lookup(a1,sub(add(150,kv_idx),q_idx)))"), (300,), (BF16, FP32),
        rows=(150, 0, 37), keys=136,
    ),
    "beside a bias": looked_up(
        BESIDE + RELU.format("add(a0,lookup(a1,sub(add(150,kv_idx),q_idx)))"), (300,), (BF16, BF16),
        batch=2, rows=150, keys=136,
    ),
    "under a mask tensor": looked_up(
        MASKED.format("q_idx,kv_idx", SUMS), (300, 40), (FP32, U8, BF16, torch.bool), batch=3,
        rows=150, keys=150,
    ),
    "under a mask tensor of each head": looked_up(
        MASKED.format("h,q_idx,kv_idx", SUMS), (300, 40), (FP32, U8, BF16, torch.bool), heads=4,
        key_heads=2, rows=150, keys=150,
    ),
    "under a mask tensor of each batch": looked_up(
        MASKED.format("b,q_idx,kv_idx", SUMS), (300, 40), (FP32, U8, BF16, torch.bool), batch=3,
        rows=150, keys=150,
    ),
    "under a mask tensor of each batch, at the same places": looked_up(
        "a0:f[t]; a1:i[q_idx,kv_idx]; a2:b[b,q_idx,kv_idx]; "
        + f"where(a2,{RELU.format('lookup(a0,a1)')},0.0)", (33,), (FP32, U8, torch.bool), batch=3,
        rows=150, keys=150,
    ),
    "beside a bias, under a mask tensor": looked_up(
        BESIDE + "a2:b[q_idx,kv_idx]; "
        + "where(a2,relu(add(s,add(a0,lookup(a1,sub(add(150,kv_idx),q_idx))))),0.0)", (300,),
        (BF16, BF16, torch.bool), batch=2, rows=150, keys=150,
    ),
    "shared keys": looked_up(
        TIME + RELU.format("lookup(a0,a1)"), (9,), (FP32, U8), batch=2, shared="kv"
    ),
}  # fmt: skip
FEW = (
    "jagged", "jagged, of tokens", "each head has tables", "all batches have the same places",
    "under a mask tensor", "under a mask tensor of each head", "under a mask tensor of each batch",
)  # fmt: skip


@pytest.mark.parametrize("room", [1, 256 << 20], ids=["parts", "at once"])
@pytest.mark.parametrize("kind", BACKWARDS)
@pytest.mark.parametrize("name", slow_but(FEW, EXACT))
def test_sums_on_integers(name: str, kind: str, room: int) -> None:
    """Every product and every sum is exact, so a wrong place is a wrong bit."""
    case = dataclasses.replace(EXACT[name], dims=(16, 8))
    grad, o = case.call()
    o = integers(o)
    grad = few(grad)
    needs = (True,) * 3 + tuple(x.is_floating_point() for x in o.aux)
    results = emulated(case, grad, o, needs, kind, room=room)
    for mine, truth in zip(results, exact(grad, o, needs), strict=True):
        assert truth.any()
        assert torch.equal(mine, truth.to(mine.dtype))


def integers(o: Operands[torch.Tensor]) -> Operands[torch.Tensor]:
    aux = [few(x) if x.is_floating_point() else x for x in o.aux]
    aux = [triangles(x) if x.dtype == torch.bool else x for x in aux]
    query, key, value = map(few, (o.query, o.key, o.value))
    return dataclasses.replace(o, query=query, key=key, value=value, aux=aux)


def triangles(mask: torch.Tensor) -> torch.Tensor:
    """Lower triangles, one after the other with fewer elements."""
    *outer, rows, cols = mask.shape
    steps = torch.arange(rows)[:, None] - torch.arange(cols)
    first = torch.arange(mask[..., 0, 0].numel()).view(*outer, 1, 1)
    return steps >= 8 * first


def few(x: torch.Tensor) -> torch.Tensor:
    """-1, 0 and 1, mostly 0."""
    return (x.sign() * (torch.rand(x.shape) < 0.3)).to(x.dtype)


@pytest.mark.parametrize("octets", [2, 32])
def test_large_row_groups(octets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_gradients, "CTAS", 0)
    monkeypatch.setattr(table_gradients, "OCTETS", octets)
    test_sums_on_integers("each head has tables", "sm90", 1)


def test_sums_over_the_batches_of_some_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_gradients, "ROOM_OF_SUMS", 1)
    test_sums_on_integers("all batches have the same places", "sm90", 1)


@pytest.mark.parametrize(
    "place, expected",
    [
        ("add(sub(q_idx,kv_idx),7)", (1, 7)),
        ("sub(kv_idx,sub(q_idx,7))", (-1, 7)),
        ("sub(add(kv_idx,i0),add(q_idx,1))", (-1, 4)),
        ("neg(sub(q_idx,kv_idx))", (-1, 0)),
        ("add(q_idx,kv_idx)", None),
        ("mul(2,sub(q_idx,kv_idx))", None),
        ("maximum(sub(q_idx,kv_idx),0)", None),
        ("sub(q_idx,a1)", None),
    ],
)
def test_places_that_are_distances(place: str, expected: tuple[int, int] | None) -> None:
    mod = ScoreMod.parse(f"a0:f[t]; a1:i[b,kv_idx]; add(s,lookup(a0,{place}))")
    found = distance(mod.places[0])
    assert (found and (found.sign, found.offset_of([5]))) == expected


@pytest.mark.parametrize(
    "access, reason", [("h,t", ""), ("b,t", "of each batch"), ("q_idx,t", "or position")]
)
def test_gradients_of_other_tables_are_refused(access: str, reason: str) -> None:
    program = f"a0:f[{access}]; silu(add(s,lookup(a0,add(sub(q_idx,kv_idx),9))))"
    result = no_such_biases(program, (True,), "bfloat16")
    assert reason in result and bool(reason) == bool(result)
