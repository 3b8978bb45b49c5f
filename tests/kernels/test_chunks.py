"""Which chunks a call has: each score is in one, within the memory, in few passes."""

import math
from dataclasses import replace

import pytest

from gdpa_inductor.kernels.blocked import chunks
from gdpa_inductor.kernels.blocked.chunks import ChunkedCall, passes
from gdpa_inductor.kernels.blocked.operands import MatrixSpec

# Sizes [B,H,M,N], head dims, bytes of an operand's element.
CALLS = [
    ((32, 1, 1024, 1024), (128, 1024), 2),
    ((8, 1, 4096, 4096), (128, 1536), 2),
    ((1, 1, 32768, 32768), (128, 1024), 2),
    ((1, 2, 300000, 70000), (64, 64), 2),
    ((1, 1, 1 << 20, 32), (64, 64), 2),
    ((1, 1, 32, 1 << 20), (64, 64), 2),
    ((2, 4, 8192, 8192), (64, 64), 4),
    ((64, 8, 50, 70), (64, 64), 4),
]


def call_of(
    sizes: tuple[int, int, int, int], dims: tuple[int, int], itemsize: int, backward: bool,
    group: int = 1, joint: bool = True,
) -> ChunkedCall:  # fmt: skip
    exact = itemsize == 4
    query = MatrixSpec("query", "rows", dims[0], exact=exact)
    key = MatrixSpec("key", "cols", dims[0], group, exact=exact)
    value = MatrixSpec("value", "cols", dims[1], group, exact=exact)
    out = MatrixSpec("out", "rows", dims[1], exact=exact)
    wanted = (value, key, query) if backward else (out,)
    size = itemsize * (2 if backward else 1)
    return ChunkedCall(sizes, (query, key, value), joint, wanted, size)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("sizes, dims, itemsize", CALLS)
def test_each_score_is_in_one_chunk(sizes, dims, itemsize, backward):
    call = call_of(sizes, dims, itemsize, backward)
    for chunk_pass in passes(call):
        assert sum(math.prod(block.shape) for block in chunk_pass.blocks) == math.prod(sizes)
        starts = {tuple(span.start for span in block) for block in chunk_pass.blocks}
        assert len(starts) == len(chunk_pass.blocks)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("sizes, dims, itemsize", CALLS)
def test_scores_and_sums_take_at_most_64_mib(sizes, dims, itemsize, backward):
    call = call_of(sizes, dims, itemsize, backward)
    found = passes(call)
    assert sorted(s.name for p in found for s in p.served) == sorted(s.name for s in call.wanted)
    for chunk_pass in found:
        scores = max(math.prod(block.shape) for block in chunk_pass.blocks) * call.score_bytes
        sums = sum(chunks.unfinished(side, chunk_pass.blocks) for side in chunk_pass.served)
        assert scores <= chunks.SCORES
        assert scores + sums <= 64 << 20


def test_gau_needs_one_pass_up_to_4096_tokens():
    for length in (1024, 2048, 4096):
        for width in (1024, 1536):
            sizes = (32768 // length, 1, length, length)
            (chunk_pass,) = passes(call_of(sizes, (128, width), 2, True))
            assert all(block.shape[2] == length for block in chunk_pass.blocks)


def test_the_wider_sums_of_a_chunk_are_complete():
    """Of a long backward: dK and dV of some columns, so that dQ alone is held in fp32."""
    call = call_of((8, 1, 4096, 4096), (128, 1024), 2, True)
    (chunk_pass,) = passes(call)
    held = {side.name: chunks.unfinished(side, chunk_pass.blocks) for side in chunk_pass.served}
    assert held == {"value": 0, "key": 0, "query": 4096 * 128 * 4}


def test_very_long_sequences_take_a_second_pass():
    """The sums of dQ over the keys would not fit."""
    first, second = passes(call_of((1, 1, 300000, 70000), (64, 64), 2, True))
    assert [s.name for s in first.served] == ["value", "key"]
    assert [s.name for s in second.served] == ["query"]


@pytest.mark.parametrize("group", [2, 4, 8])
def test_a_chunk_reads_one_distance_between_heads(group):
    call = call_of((3, 8, 100, 100), (64, 64), 2, True, group=group, joint=group == 8)
    for chunk_pass in passes(call):
        for block in chunk_pass.blocks:
            heads = {h // group for h in range(block.h.start, block.h.stop)}
            assert len(heads) == 1 or group == 8


def test_launches_are_counted():
    """Two chunks: two products and the program each, and three sums."""
    call = call_of((4, 1, 2048, 2048), (128, 128), 2, True)
    assert len(passes(call)[0].blocks) == 2
    assert chunks.launches(call, 2) == 2 * (2 + 1 + 3)


def test_sums_of_a_bias_are_of_many_batches_of_one_head():
    """Of [H,M,N] in a batch of 16, chunks of 8 batches store 2 sums a head, not 8 of all heads."""
    call = replace(call_of((16, 4, 2048, 2048), (64, 64), 2, True), stored=True)
    for by_head, shape in ((False, (2, 4)), (True, (8, 1))):
        (chunk_pass,) = passes(replace(call, by_head=by_head))
        assert {block.shape for block in chunk_pass.blocks} == {(*shape, 2048, 2048)}
    shared = replace(call_of((16, 4, 2048, 2048), (64, 64), 2, True, group=4), stored=True)
    assert passes(replace(shared, by_head=True)) == passes(shared), "sums of keys count more"
