"""The measuring stick for Hopper: its arithmetic, and its loops as machine code. Needs no GPU."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch

import benchmarks.ceiling.__main__ as ceiling
import gdpa_inductor.__main__ as command
from benchmarks.ceiling import load
from benchmarks.ceiling.run import CONTENDERS, loaded, reference, table
from gdpa_inductor._compat import dynamo


def row(measure: str, name: str, length: int, tflops: float) -> dict:
    return {"measure": measure, "contender": name, "shape": [1, 1, length, 128], "tflops": tflops}


def test_every_call_is_first_once_in_as_many_turns():
    names = ["a", "b", "c"]
    orders = [load.rotated(names, turn) for turn in range(3)]
    assert {order[0] for order in orders} == set(names)
    assert all(sorted(order) == names for order in orders)


def test_a_full_tensor_core_is_the_whole_peak():
    """132 multiprocessors of 4096 operations a clock at 1755 MHz: 949 TFLOP/s."""
    assert load.of_peak(948.9, 1755, 132) == pytest.approx(1, rel=1e-4)


def test_samples_are_medians_and_broken_lines_are_left_out():
    lines = ["1600, 690.5, 60, 0x4\n", "1500, 700.5, 62, 0x4\n", "1700, 680.5, 61, 0x0\n", "15"]
    samples = load.summary(lines)
    assert samples == {"mhz": 1600, "watt": 690.5, "celsius": 61, "reasons": ["0x0", "0x4"]}
    assert load.summary(["15"]) == {}


def test_table_has_a_line_for_each_contender_and_a_column_for_each_length():
    rows = [row("forward", "a", 512, 400.4), row("forward", "a", 1024, 500.6)]
    rows.append(row("backward", "a", 1024, 300.0))
    assert table(rows, lambda r: f"{r['tflops']:.0f}").splitlines() == [
        "|  |  | N = 512 | N = 1024 |",
        "| --- | --- | --- | --- |",
        "| forward | a | 400 | 501 |",
        "| backward | a | – | 300 |",
    ]


def test_load_is_shown_where_it_was_measured():
    measured = {"tflops": 737.6, "mhz": 1620.0, "watt": 687.2, "of_peak": 0.842}
    assert loaded({"load": measured}) == "738, 1620 MHz, 687 W, 84%"
    assert loaded({"load": {"tflops": 1.0}}) == loaded({}) == "–"


class Few:
    """Operands of the checks, on a CPU."""

    def __init__(self, length: int = 16) -> None:
        from benchmarks.cases import Case

        torch.manual_seed(1)
        self.case = Case("silu", "none", 1, 2, length, 128, "bfloat16", "cpu")
        shape = (1, 2, length, 128)
        self.heads_first = [torch.randn(shape, dtype=torch.bfloat16) for _ in "qkvo"]


@pytest.mark.parametrize("computes", sorted({who.computes for who in CONTENDERS.values()}))
def test_references_are_fp64_and_have_all_gradients(computes: str):
    on = Few()
    (out,) = reference(computes, on, "forward")
    q, k, v, direction = (x.float() for x in on.heads_first)
    scores = q @ k.mT * 128**-0.5
    plain = {
        "softmax": lambda s: torch.softmax(s, -1),
        "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda s: torch.nn.functional.gelu(s, approximate="tanh"),
    }[computes](scores)
    assert out.dtype == torch.double
    torch.testing.assert_close(out.float(), plain @ v, rtol=1e-4, atol=1e-4)
    grads = reference(computes, on, "backward")
    assert len(grads) == 3
    torch.testing.assert_close(grads[2].float(), plain.mT @ direction, rtol=1e-4, atol=1e-4)


def products():
    pytest.importorskip("cutlass")
    from benchmarks.ceiling import products

    return products


@pytest.mark.parametrize("activated", [False, True])
def test_what_the_loops_should_store_is_the_gradient_of_the_formula(activated: bool):
    """But for the scale of dQ and dK, which the loops leave out."""
    host = products()
    *matrices, direction = (x.double() for x in Few(64).heads_first)
    q, k, v = (x.requires_grad_() for x in matrices)
    scale = 128**-0.5 if activated else 1.0
    scores = q @ k.mT * scale
    out = (torch.nn.functional.silu(scores) if activated else scores) @ v
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), direction)
    operands = [x.detach() for x in (q, k, v, direction)]
    (forward,) = host.expected(host.ForwardCeiling(activated=activated), *operands)
    gradients = host.expected(host.BackwardCeiling(activated=activated), *operands)
    for mine, exact in zip([forward, *gradients], [out, dv, dk / scale, dq / scale], strict=True):
        assert (mine - exact).norm() / exact.norm() < 5e-3  # two roundings to bf16


@pytest.mark.parametrize("rows", [64, 80])
def test_dq_is_found_in_the_order_of_the_registers(rows: int):
    """Accumulators of wgmma hold dQᵀ: a thread has rows 8j + 2(lane % 4) and the next of dQ, at the
    columns 16 warp + lane / 4 and 8 further, of the 64 of its warpgroup."""
    host, heads, length = products(), 2, 256
    tiles = -(-length // rows)
    torch.manual_seed(2)
    wanted = torch.randn(heads, tiles, rows, 128)
    registers = torch.empty(heads, tiles, 2, rows // 8, 128, 4)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for number in range(4):
            steps = 2 * (lane % 4) + number % 2, 16 * warp + lane // 4 + 8 * (number // 2)
            for group in range(2):
                part = wanted[:, :, steps[0] :: 8, 64 * group + steps[1]]
                registers[:, :, group, :, thread, number] = part
    launch = object.__new__(host.Launch)
    launch.loop, launch.heads, launch.tiles = host.BackwardCeiling(rows), heads, tiles
    launch.tensors, launch.dq = (torch.empty(1, heads, length, 128),), registers.flatten()
    flat = wanted.reshape(1, heads, tiles * rows, 128)
    assert torch.equal(launch.rows_of_dq(), flat[:, :, :length])


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("length", [128, 512, 1024, 2048, 8192])
@pytest.mark.parametrize("rows", [64, 80, 128])
def test_a_turn_waits_only_for_tiles_that_come_earlier(rows: int, length: int, turned: bool):
    """Turned, to a query tile in steps of their own: in step with each other they never wait, and
    no circle of them can. Else the lower key tiles."""
    loop = products().BackwardCeiling(rows, dq="ordered", turned=turned)
    tiles, steps, head = length // 128, -(-length // rows), 3
    for row in range(steps):
        numbers = range(head * tiles, (head + 1) * tiles)
        turns = {tile: loop.turn(tile, row, tiles, steps) for tile in numbers}
        assert sorted(turns.values()) == list(range(tiles))
        ordered = sorted(numbers, key=lambda tile: turns[tile])
        if turned:
            waits = [(row - loop.first(tile, tiles, steps)) % steps for tile in ordered]
            assert waits == sorted(set(waits))
        else:
            assert ordered == list(numbers)


def test_the_tiles_of_a_head_run_at_once_where_they_wait_for_each_other():
    host = products()
    ordered = host.BackwardCeiling(dq="ordered")
    assert [host.ctas(ordered, 132, tiles) for tiles in (4, 8, 64, 100)] == [132, 128, 128, 100]
    assert host.ctas(host.BackwardCeiling(), 132, 8) == 132
    with pytest.raises(ValueError, match="133 tiles"):
        host.ctas(ordered, 132, 133)


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["forward", "backward"])
def test_loops_keep_their_products_in_flight(measure: str):
    """A ceiling of serialized wgmma would be none: ptxas then waits after each instruction."""
    host = products()
    pytest.importorskip("triton")  # its package has the disassembler
    for name, loop in host.LOOPS[measure].items():
        count, waits = instructions(host, loop)
        steps = loop.rows // 16
        # S of the first tile; S and P V of a step; P V of the last step, S of the next tile.
        forward = 8 + 2 * 8 + 2 * 8
        # The first S of a tile; all five of a step; four of the last step.
        backward = 8 + (3 * 8 + 2 * steps) + (2 * 8 + 2 * steps)
        assert count["HGMMA"] == (backward if loop.backward else forward), name
        assert waits <= 10, f"{name}: the products are serialized"
        assert count["USETMAXREG"] == 2, name
        assert count["STL"] + count["LDL"] == 0, f"{name}: registers spill"


def instructions(host, loop) -> tuple[Counter, int]:
    """How often each one is in the machine code of a loop, and how often it waits for products."""
    from tests.kernels.fake_cuda import tool

    with tempfile.TemporaryDirectory() as folder:
        kernel = host.compiled(loop, f"--gpu-arch=sm_90a --keep-cubin --dump-dir={folder}")
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.__cubin__)
        words = tool("nvdisasm", "-c", str(path)).split()
    waits = sum(word.startswith("WARPGROUP.DEPBAR") for word in words)
    return Counter(word.split(".")[0] for word in words), waits


def test_the_bench_command_hands_over_to_it(monkeypatch: pytest.MonkeyPatch):
    arguments = []
    monkeypatch.setattr(ceiling, "main", lambda argv: arguments.append(argv) or 0)
    assert command.main(["bench", "ceiling", "--turns", "3"]) == 0
    assert arguments == [["--turns", "3"]]


def test_every_contender_of_a_shape_is_compiled():
    """All of them compile one function, and Dynamo runs the ninth in eager."""
    compiled = []

    def plain(x):
        return x.relu() + 1

    torch.compiler.reset()
    with dynamo.without_limit():
        for size in range(2, 22):
            backend = lambda gm, _, size=size: compiled.append(size) or gm
            torch.compile(plain, backend=backend, dynamic=False)(torch.ones(size))
    assert compiled == [*range(2, 22)]
