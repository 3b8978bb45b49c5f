"""The Hopper kernels as machine code: products in flight, by TMA, without spills, in bounds."""

import dataclasses
import functools
from typing import Any

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("triton")  # its package has the disassembler

from cutlass import BFloat16, cute

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.backward import jagged_sums
from gdpa_inductor.kernels.cute.backward.roots import masked
from gdpa_inductor.kernels.cute.config import SHARED_MEMORY, StoredTiling, TableLayout
from gdpa_inductor.kernels.cute.sm90 import wgmma
from gdpa_inductor.kernels.cute.sm90.config import COLS, HALF, ROWS, Sm90Config
from gdpa_inductor.kernels.cute.sm90.forward.bias import CHUNK, CHUNKS, HopperBias
from gdpa_inductor.kernels.cute.sm90.forward.roles import OWN, Roles
from gdpa_inductor.kernels.cute.sm90.wgmma import WARPGROUP, K
from tests.emulator.recording import linked

from .cute_account import BIAS, CONFIGS, Binary, binary, disassembled
from .marks import slow_but

ONCE = ("silu, D 128, fp16", "silu, D 64")
BACKWARD_SPILLS = 24  # instructions
SPILLS = 32  # words per thread, where an operand of each score is read
CAUSAL_BIAS = "a0:f[b,-,q_idx,kv_idx]; where(ge(q_idx,kv_idx),gelu_tanh(add(s,a0)),0.0)"
TWO = "a0:f[h,q_idx,kv_idx]; a1:f[b,h,q_idx,kv_idx]; silu(add(add(mul(s,0.1),a0),a1))"
ROW = "a0:f[q_idx,h]; silu(add(s,a0))"
KEYS = "a0:f[k,h]; silu(add(s,a0))"


def tiled(
    dim: int, program: str = BIAS, aux: tuple[str, ...] = ("bfloat16",), jagged: bool = False,
    **fields: Any,
) -> Sm90Config:  # fmt: skip
    """With operands that are read in vectors, the first of them in tiles."""
    vectors = frozenset(range(len(aux)))
    return Sm90Config(aux[0], dim, dim, program, aux, jagged, jagged, vectors=vectors, **fields)


TILED = {
    "silu, D 128": tiled(128),
    "silu, D 64": tiled(64),
    "silu, D 64, jagged": tiled(64, jagged=True),
    "causal gelu, D 96, jagged fp16": tiled(96, CAUSAL_BIAS, ("float16",), jagged=True),
    "two biases, D 128": tiled(128, TWO, ("bfloat16", "float32")),
    "two biases, D 64": tiled(64, TWO, ("bfloat16", "float32")),
}


@pytest.mark.parametrize("name", slow_but(ONCE, CONFIGS))
def test_machine_code(name: str):
    config = hopper(name)
    in_flight(config, binary(config), 2 * SPILLS if config.aux else 0)


def test_machine_code_where_queries_have_the_scale():
    """A score costs a tanh, a multiply-add and half a conversion."""
    other = hopper("silu, D 64")
    config = dataclasses.replace(other, program="silu(mul(s,0.125))")
    assert (config.query_factor, other.query_factor) == (0.0625, 1.0)
    kernel = binary(config)
    in_flight(config, kernel, 0)
    # A tile's first block and the block of a step, each with and without a mask.
    assert binary(other).count("FMUL") - kernel.count("FMUL") == 2 * 2 * COLS // 2


@pytest.mark.slow
@pytest.mark.parametrize("name", TILED)
def test_machine_code_with_a_tiled_bias(name: str):
    config = TILED[name]
    kernel = binary(config)
    in_flight(config, kernel, SPILLS * (2 * len(config.aux) - 1))
    # A tile's first block and the block of a step, each with and without a mask.
    assert kernel.count("LDSM") == 2 * 2 * COLS // 16
    assert kernel.count("UTMALDG") >= config.tiles + 2 + config.tiles * COLS // HALF
    elements = kernel.before("USETMAXREG.DEALLOC").count("LDG")
    assert bool(elements) == (len(config.aux) > 1), "the bias is read by elements"
    # What frees a half tile depends on all that was read from it.
    order = [x for x in kernel.opcodes if x.startswith(("LDSM", "POPC", "SYNCS.ARRIVE"))]
    halves = [i for i, x in enumerate(order) if x.startswith("POPC") and "LDSM" in order[i - 1]]
    assert len(halves) == 2 * 2 * COLS // HALF
    for i in halves:
        assert "LDSM" in order[i - HALF // 16] and "ARRIVE" in order[i + 1], order


CAUSAL_TABLES = (
    "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[h,t]; where(ge(q_idx,kv_idx),"
    "silu(add(add(s,lookup(a0,add(sub(q_idx,kv_idx),2047))),lookup(a2,a1))),0.0)"
)


def tables(dim: int, **fields: Any) -> Sm90Config:
    """Tables of positions and of times, whose places come by TMA."""
    dtypes, lookups = (
        ("float32", "uint8", "float32"),
        (TableLayout(0, 4095, 1), TableLayout(2, 129, 1)),
    )
    fields |= {"vectors": frozenset([1]), "lookups": lookups}
    return Sm90Config("bfloat16", dim, dim, CAUSAL_TABLES, dtypes, **fields)


@pytest.mark.parametrize("dim", [pytest.param(64, marks=pytest.mark.slow), 128])
def test_machine_code_with_tables(dim: int):
    """Places and their elements are in shared memory. A byte becomes an address by an instruction.
    Distances share loads.
    """
    config = tables(dim)
    kernel = binary(config)
    in_flight(config, kernel, SPILLS)
    products = kernel.before("USETMAXREG.DEALLOC")
    # A tile's first block and the block of a step, with a variant without a mask and one with a
    # mask. Of two warpgroups the first half of the keys comes before scores.
    scores = 2 * (COLS + 2 * COLS) // 4 if config.tiles == 2 else 2 * 2 * COLS // 2
    assert products.count("LDS.U16") == scores // 2
    assert products.count("IDP.4A") == scores
    # Two rows share distances. Each variant reads them. Two other words are read so in records.
    assert products.count("LDS.64") - 2 * 2 * (COLS // 8 + 1) in (0, 2)
    assert products.count("LDS") >= scores // 2 + scores + products.count("LDS.64")
    # A thread loads two distances with their neighbours, and two elements of the table of times.
    assert products.count("LDG") == 2 * 4 + 2
    assert kernel.count("UTMALDG") >= config.tiles + 2 + config.tiles * COLS // HALF


@pytest.mark.parametrize("dim", [pytest.param(64, marks=pytest.mark.slow), 128])
def test_machine_code_of_the_backward_with_tables(dim: int):
    config = tables(dim, kernel="backward")
    kernel = binary(config)
    products = kernel.before("USETMAXREG.DEALLOC")
    waits = expected_of_the_backward(config)[1]
    assert kernel.count("WARPGROUP.DEPBAR") == waits, "the products are serialized"
    # Two steps, each with a program for whole tiles and one for the ends. Where places of distances
    # are checked for each score, there is a third one without checks.
    scores, variants = config.query_rows // 2, 2 if config.banded else 3
    assert products.count("LDS.U8") == 2 * scores
    assert products.count("IDP.4A") == 2 * variants * scores
    assert products.count("LDS") >= 2 * scores + 4 * scores
    in_bounds(kernel, 9 * BACKWARD_SPILLS)
    assert kernel.shared <= SHARED_MEMORY - 1024, "with what ptxas adds for alignment"


def test_a_bias_lies_in_registers_as_the_scores_do():
    """By ldmatrix lane l of a warp says where row l % 8 of matrix l // 8 begins. It gets numbers
    2·(l % 4) and 2·(l % 4) + 1 of row l // 4 of each matrix."""
    scores, begins = {}, {}

    def note(thread: int) -> None:
        whole, half = (cute.make_identity_tensor(x) for x in ((ROWS, COLS), (ROWS, HALF, 1)))
        own = wgmma.tiled(BFloat16, COLS, K).get_slice(thread).partition_C(whole)
        bias = HopperBias(0, None, half, 0, thread, BFloat16, 1, COLS // HALF)
        scores.update({(thread, r): own[r] for r in range(CHUNK * CHUNKS)})
        for chunk in range(CHUNKS):
            begins[thread, chunk] = bias.source[(0, chunk), 0, 0, 0][:2]

    @cute.jit
    def trace():
        _ = [note(thread) for thread in range(WARPGROUP)]

    with linked():
        cute.compile(trace, options="--gpu-arch=sm_90a")
    for (thread, r), place in scores.items():
        warp, lane, (chunk, number) = thread // 32, thread % 32, divmod(r, CHUNK)
        row, column = begins[32 * warp + number // 2 * 8 + lane // 4, chunk]
        assert place == (row, column + 2 * (lane % 4) + number % 2)


@pytest.mark.parametrize("name", slow_but(ONCE, CONFIGS))
def test_machine_code_of_the_backward(name: str):
    config = hopper(name)
    kernel = binary(dataclasses.replace(config, kernel="backward"))
    products, waits = expected_of_the_backward(config)
    assert kernel.count("HGMMA") == products
    assert kernel.count("WARPGROUP.DEPBAR") == waits, "the products are serialized"
    assert kernel.count("USETMAXREG") == 2
    assert kernel.count("UTMALDG") >= 4
    assert kernel.count("UTMAREDG") >= 1
    # Whole lines of the cache are dropped where sums of dQ were converted.
    assert (kernel.count("CCTL.E.RML2") > 0) == (config.converts and config.head_dim % 32 == 0)
    # What the next tile begins with is asked for ahead where tiles are alike.
    backward = dataclasses.replace(config, kernel="backward")
    alike = config.lags and not (config.jagged_q or config.jagged_k or masked(backward))
    assert (kernel.count("CCTL.E.PF2") > 0) == alike
    # dQ in 16 bits leaves the cache first.
    assert (kernel.count("STG.E.EF.128") > 0) == config.converts
    # The roles with few registers stand behind the products. They have time.
    before = kernel.before("USETMAXREG.DEALLOC")
    assert before.spills <= BACKWARD_SPILLS * (4 if config.aux else 1), "registers spill"
    in_bounds(kernel, before.spills + BACKWARD_SPILLS)


FREE = ("silu, D 128", "causal sigmoid, D 64", "jagged silu, D 128", "seeds, silu, D 128")


@pytest.mark.parametrize("name", slow_but(FREE[:1], FREE))
def test_machine_code_where_dq_is_added_in_any_order(name: str):
    """Nobody waits for a turn, and nobody stores a sum."""
    ordered, free = (dataclasses.replace(hopper(name), ordered=x) for x in (True, False))
    before, after = (binary(dataclasses.replace(c, kernel="backward")) for c in (ordered, free))
    assert (before.count("RED"), after.count("RED")) == (0, 1)
    waits, left = (x.count("LDG.E.STRONG.GPU") for x in (before, after))
    assert waits - left == 2, "the first look at a counter, and those of the loop"
    adds = -(-free.head_dim // 64)
    assert after.count("UTMASTG") == before.count("UTMASTG") - before.count("UTMAREDG")
    assert after.count("UTMAREDG") == before.count("UTMAREDG") >= adds
    for opcode in ("HGMMA", "WARPGROUP.DEPBAR", "UTMALDG"):
        assert after.count(opcode) == before.count(opcode)
    assert after.spills <= before.spills
    in_bounds(after, before.spills)


@pytest.mark.parametrize("head_dim", [pytest.param(64, marks=pytest.mark.slow), 128])
@pytest.mark.parametrize("jagged", [False, True], ids=["dense", "jagged"])
def test_machine_code_where_the_gradient_of_a_bias_is_stored(head_dim: int, jagged: bool):
    """The bias comes by TMA and ldmatrix, so that no element of it is loaded alone."""
    changes = {"stored": 0, "head_dim": head_dim, "value_dim": head_dim}
    changes |= {"jagged_q": jagged, "jagged_k": jagged}
    config = dataclasses.replace(hopper("silu + bias (bf16), D 128"), **changes)
    kernel = binary(dataclasses.replace(config, kernel="backward"))
    products = kernel.before("USETMAXREG.DEALLOC")
    waits = expected_of_the_backward(config)[1]
    assert kernel.count("WARPGROUP.DEPBAR") == waits, "the products are serialized"
    # Two steps, each with a program for whole tiles and one for the ends: 8 scores a load.
    assert products.count("LDSM") == 4 * config.query_rows // 16
    # Of a tile: its sequence, and where that begins and ends on either side.
    assert products.count("LDG") == (5 if jagged else 0)
    # What the walk of a jagged side needs: three words.
    assert products.spills <= (6 if jagged else 0)
    in_bounds(kernel, BACKWARD_SPILLS)


MASKED = "a0:b[q_idx,kv_idx]; a1:f[h,q_idx,kv_idx]; where(a0,0.0,silu(add(mul(s,0.1),a1)))"
FETCHED = {  # program, dtypes, loads in a step, spills
    "fp32 bias": ("a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.1),a0))", ("float32",), 32, 48),
    "mask and fp32 bias": (MASKED, ("bool", "float32"), 64, 128),
}


@pytest.mark.parametrize("name", slow_but(["fp32 bias"], FETCHED))
def test_machine_code_where_operands_are_fetched_for_a_step(name: str):
    """Two steps, each with loads for whole query tiles and for those that end early."""
    program, dtypes, loads, spills = FETCHED[name]
    vectors = frozenset(range(len(dtypes)))
    config = Sm90Config(
        "bfloat16", 128, 128, program, dtypes, vectors=vectors, stored=len(dtypes) - 1
    )
    kernel = binary(dataclasses.replace(config, kernel="backward"))
    products = kernel.before("USETMAXREG.DEALLOC")
    assert kernel.count("WARPGROUP.DEPBAR") == 7, "the products are serialized"
    assert products.count("LDG") == 2 * 2 * loads
    assert products.spills <= spills


def test_machine_code_where_a_table_tells_tiles_apart():
    """A tile that the mask leaves whole reads one number of the table, and none of the mask."""
    program, dtypes, loads, spills = FETCHED["mask and fp32 bias"]
    config = Sm90Config("bfloat16", 128, 128, program, dtypes, vectors=frozenset([0, 1]), stored=1)
    config = dataclasses.replace(config, bounded=frozenset([0]), kernel="backward")
    kernel = disassembled(functools.partial(launch.compiled.__wrapped__, config))
    products = kernel.before("USETMAXREG.DEALLOC")
    assert kernel.count("WARPGROUP.DEPBAR") == 7, "the products are serialized"
    # Which query tiles a tile meets, and in either step whether its own is whole.
    assert products.count("LDG") == 2 * 2 * loads + 3
    assert products.spills <= spills


TILING = StoredTiling(ROWS, COLS, by_keys=True)
SUMS = {
    "of tiles": ("tiles", (1.0, False, True, TILING)),
    "of tiles, for each sequence": ("tiles", (0.5, True, False, TILING)),
    "of rows": ("rows", (1.0, TILING)),
}


@pytest.mark.parametrize("name", SUMS)
def test_machine_code_of_the_sums_of_jagged_biases(name: str):
    """Scores come 16 bytes at a time, and threads enough fit to hide how long they take."""
    arguments = (*SUMS[name], "bfloat16", "float32", Sm90Config.arch)
    kernel = disassembled(functools.partial(jagged_sums.compiled, *arguments))
    assert kernel.count("LDG.E.128") >= 1
    assert kernel.spills == 0
    assert kernel.usage["REG"] <= 64


@pytest.mark.parametrize(
    ("dims", "tiles"), [((64, 64), 3), ((8, 40), 3), ((64, 96), 2), ((96, 64), 2), ((128, 128), 2)]
)
@pytest.mark.parametrize("jagged", [False, True])
def test_three_warpgroups_multiply_at_small_head_dims(dims, tiles, jagged):
    config = Sm90Config("bfloat16", *dims, "silu(s)", (), jagged, jagged)
    assert config.tiles == tiles
    assert config.query_stages == 2 * tiles
    assert config.key_stages >= 4


@pytest.mark.parametrize(
    ("program", "vectors", "tiles"),
    [(BIAS, [0], 3), (BIAS, [], 2), (TWO, [0, 1], 2), (ROW, [], 3), (KEYS, [], 2)],
    ids=["tiled", "by elements", "two", "of rows", "of keys"],
)
def test_three_warpgroups_have_no_registers_for_operands_of_keys(program, vectors, tiles):
    dtypes = ("bfloat16",) * (1 + (program == TWO))
    config = Sm90Config("bfloat16", 64, 64, program, dtypes, vectors=frozenset(vectors))
    assert config.tiles == tiles


@pytest.mark.parametrize("tiles", [2, 3])
def test_the_warpgroups_share_registers_and_named_barriers(tiles: int):
    roles = Roles(tiles)
    products, others = roles.registers
    assert WARPGROUP * (tiles * products + others) <= 65536
    assert products % 8 == others % 8 == 0
    # Those of `together` and of the turns; 0 is of the whole CTA.
    assert OWN > 0 and OWN + 2 * tiles <= 16


def expected_of_the_backward(config: Sm90Config) -> tuple[int, int]:
    """How many products of 16 deep the machine code has, and how many waits for some of them."""
    scores, sums = (64 if config.head_dim <= 64 else 128) // 16, COLS // 16
    # dP, dV and dK of a query tile, in a step and in the last one.
    both = 2 * (config.padded_value_dim // 16 + 2 * (config.query_rows // 16))
    if config.lags:
        # S of a tile's first step, of one that follows the first and of one that follows another.
        # dQ of the step before, in a step and in the last one, and of the last one. Waits are for
        # S of the first step and for dQ of the last one. In both steps they are for dP, for dV, for
        # dQ and what follows it, and for all where there was no step before.
        return both + 3 * scores + 3 * sums, 2 + 2 * 5
    # S of a tile's first step and of the next ones; dQ. For dP, for dV and for all.
    return both + 2 * scores + 2 * sums, 1 + 2 * 3


def hopper(name: str) -> Sm90Config:
    """The configuration of this name, for Hopper."""
    config = CONFIGS[name]
    return Sm90Config(**{x.name: getattr(config, x.name) for x in dataclasses.fields(config)})


def in_flight(config: Sm90Config, kernel: Binary, spills: int) -> None:
    """The products of a forward are not waited for too early. spills: as `in_bounds` has it."""
    # S of a tile's first block; S and P V of a step; P V of the last block.
    assert kernel.count("HGMMA") == 2 * (config.padded_head_dim // 16 + config.cols // 16)
    assert kernel.count("WARPGROUP.DEPBAR") == 4, "the products are serialized"
    assert kernel.count("USETMAXREG") == 2
    assert kernel.count("UTMALDG") >= config.tiles + 2
    assert kernel.count("UTMASTG") >= 1
    in_bounds(kernel, spills, 32 * Roles(config.tiles).warps)


def in_bounds(kernel: Binary, spills: int, threads: int = 384) -> None:
    """spills: the most instructions that move a register to memory, or back."""
    assert kernel.spills <= spills, "registers spill"
    assert kernel.usage["REG"] * threads <= 65536
    assert kernel.shared <= SHARED_MEMORY
