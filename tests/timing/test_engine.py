"""Units, barriers and schedules whose times are known."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from .engine import (
    ENERGY,
    Barrier,
    Commit,
    Deadlock,
    Done,
    Load,
    Machine,
    Multiply,
    Operation,
    Run,
    Signal,
    Sleep,
    Store,
    Stored,
    Wait,
    ring,
    simulate,
)
from .kernels import Problem, above, costs, timed
from .machines import B200, H200

# One operation, byte or special function of each kind takes a clock, and nothing is late.
UNIT = Machine(
    name="unit", processors=1, tensor=1, shared=1, mufu=128, l2=1, adds=1, hbm=1e6, latency=0,
    far=0, cpi=1, signal=0, drain=0, tmem=1, mhz=1, launch=0,
)  # fmt: skip


def time(*roles: list[Operation], machine: Machine = UNIT, **barriers: Barrier) -> float:
    numbered = {str(i): iter(x) for i, x in enumerate(roles)}
    return simulate(machine, barriers, numbered).end


def test_a_run_takes_what_its_pipes_take():
    assert time([Run(issue=8)]) == 8
    assert time([Run(issue=8, fma=80)]) == 80
    # Special functions come before what waits for them: here half of the instructions.
    assert time([Run(issue=16, mufu=8)]) == 16
    assert time([Run(issue=16, mufu=8)], machine=replace(UNIT, cpi=3)) == 8 + 3 * 8


def test_two_warpgroups_share_a_pipe_but_not_the_wait_between_instructions():
    slow = replace(UNIT, cpi=4)
    assert time([Run(issue=8)], [Run(issue=8)], machine=slow) == pytest.approx(32, rel=0.1)
    assert time([Run(alu=8)], [Run(alu=8)]) == 16


def test_products_run_in_the_order_of_issue():
    first, second = Multiply(100), Multiply(30)
    assert time([first, Done()], [Sleep(1), second, Done()]) == 130
    assert time([first, second, Done(1)]) == 130  # the tensor core goes on
    assert time([first, second, Done(1), Sleep(5)]) == 130


def test_operands_bound_a_product():
    assert time([Multiply(80, shared=800), Done()]) == 800


def test_a_product_from_registers_holds_its_warps():
    machine = replace(UNIT, held=0.5)
    assert time([Multiply(80, held=True), Sleep(100)], machine=machine) == 30 + 100
    assert time([Multiply(80), Sleep(100)], machine=machine) == 100
    # Registers are read at a rate of their own.
    assert time([Multiply(80, held=True)], machine=replace(machine, operand=20)) == 160


def test_a_commit_signals_after_all_products_before_it():
    waits = [Wait("done"), Sleep(7)]
    assert time([Multiply(50), Multiply(50), Commit("done")], waits, done=Barrier()) == 107
    assert time([Commit("done")], waits, done=Barrier()) == 7


def test_a_barrier_completes_when_all_have_come():
    roles = [Sleep(3), Signal("x")], [Sleep(9), Signal("x")], [Wait("x"), Sleep(1)]
    assert time(*roles, x=Barrier(2)) == 10
    late = replace(UNIT, signal=5)
    assert time(*roles, x=Barrier(2), machine=late) == 15


def test_a_role_waits_for_each_completion_once():
    twice = [Wait("x"), Wait("x"), Sleep(1)]
    assert time([Signal("x"), Sleep(20), Signal("x")], twice, x=Barrier()) == 21


def test_a_ring_lets_loads_run_ahead_by_its_stages():
    def loads() -> list[Operation]:
        return [x for _ in range(4) for x in (Wait("-K"), Load(10, "K"))]

    def reads() -> list[Operation]:
        return [x for _ in range(4) for x in (Wait("K"), Sleep(100), Signal("-K"))]

    machine = replace(UNIT, latency=50, fills=0.0)
    # With one buffer each load waits for the reader before it, with two all but the first hide.
    assert time(loads(), reads(), machine=machine, **ring("K", 1)) == 4 * (10 + 50 + 100)
    assert time(loads(), reads(), machine=machine, **ring("K", 2)) == 10 + 50 + 4 * 100


def test_fresh_bytes_come_from_memory():
    machine = replace(UNIT, far=30, fills=0.0)  # a byte of memory takes a clock too
    waits = [Wait("x")]
    assert time([Load(8, "x")], waits, x=Barrier(), machine=machine) == 8
    assert time([Load(8, "x", 1.0)], waits, x=Barrier(), machine=machine) == 38


def test_stores_and_additions():
    machine = replace(UNIT, latency=10, adds=0.5)
    assert time([Store(8), Stored(), Sleep(1)], machine=machine) == 18
    assert time([Store(8), Stored(complete=True), Sleep(1)], machine=machine) == 8 + 10 + 1
    assert time([Store(8, adds=True), Stored(), Sleep(1)], machine=machine) == 16 + 10


def test_roles_that_wait_forever_are_a_deadlock():
    with pytest.raises(Deadlock, match="x"):
        time([Wait("x"), Signal("y")], [Wait("y"), Signal("x")], x=Barrier(), y=Barrier())


class Steady:
    """A tile is 5 clocks and 10 for each step, the launch 3 before."""

    def barriers(self) -> dict[str, Barrier]:
        return {}

    def roles(self, tiles: int, steps: int) -> dict[str, Iterator[Operation]]:
        return {"all": iter([Sleep(3), *[Sleep(5 + 10 * steps)] * tiles])}


def test_costs_of_a_schedule_with_a_known_answer():
    found = costs(UNIT, Steady())
    assert (found.step, found.tile, found.first) == (10, 5, 3)
    assert found.clocks(7, 100) == 3 + 7 * (5 + 1000)


def test_memory_bounds_a_kernel():
    found, machine = costs(UNIT, Steady()), replace(UNIT, launch=1.0, dirty=2e6)
    work, memory = timed(machine, 5e6, 1e6, found), timed(machine, 5e6, 9e6, found)
    assert (work.seconds, memory.seconds, memory.bound) == (1 + 2 + 5, 1 + 2 + 9, "memory")


def test_the_clock_falls_with_work():
    machine = replace(H200, mhz=1980, power=700.0)
    light, heavy = machine.clock(0.1, 0.1), machine.clock(0.9, 0.9)
    assert heavy < light <= 1980
    assert heavy == pytest.approx(1e3 * (700 / (ENERGY[0] + 0.9 * (ENERGY[1] + ENERGY[2]))) ** 0.5)
    assert replace(H200, mhz=1500).clock(0.9, 0.9) == 1500


def test_flops_and_bytes():
    problem = Problem(2, 3, 256, 64, 128)
    assert problem.flops(2) == 4 * 6 * 256 * 128 * 64
    assert problem.bytes(4, 2) == 6 * 64 * (256 * 4 + 128 * 2)
    assert [above(x, 128) for x in (1, 128, 129)] == [1, 1, 2]


def test_tensor_rates_are_the_peaks_of_the_cards():
    assert H200.processors * H200.tensor * 1.83e9 / 1e12 == pytest.approx(989, rel=0.01)
    assert B200.processors * B200.tensor * 1.85e9 / 1e12 == pytest.approx(2250, rel=0.01)
