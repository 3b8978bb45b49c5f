"""Plans: what identifies a template."""

import os
import subprocess
import sys

from gdpa_inductor.kernels.triton.template import AuxRead, Plan
from gdpa_inductor.program.score_mod import Aux

BIAS = AuxRead(0, Aux("f", ("h", "q_idx", "kv_idx")))
MADE = (
    "Plan('rows', ('ds',), grouped=frozenset({'K', 'V'}), shared=frozenset({'Q', 'K', 'V'})).name"
)


def test_the_name_tells_plans_apart():
    plans = [
        Plan("forward", ("p",)),
        Plan("forward", ("p",), (BIAS,)),
        Plan("forward", ("p",), shared=frozenset({"K"})),
        Plan("keys", ("p", "ds")),
        Plan("keys", ("ds", "p")),
        Plan("keys", ("p", "ds"), loops_heads=True),
    ]
    assert len({plan.name for plan in plans}) == len(plans)


def test_the_name_is_the_same_in_every_process():
    program = f"from gdpa_inductor.kernels.triton.template import Plan; print({MADE})"
    names = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(3)
    }
    assert len(names) == 1


def test_arguments_come_in_the_order_of_the_kernel():
    plan = Plan("keys", ("p", "ds", "g0"), (BIAS,))
    assert plan.arguments == ("Q", "K", "V", "DO", "A0", "OUT1", "OUT2")
    assert dict(plan.terms) == {"p": 0, "ds": 1, "g0": 2}
    assert plan.fixed["g"] == "dp"


def test_the_forward_branches_where_nothing_is_loaded_for_some_tiles_alone():
    assert Plan("forward", ("p",), skips=True).branches
    assert Plan("forward", ("p",), (BIAS,), skips=True, whole_reads=(BIAS,)).branches
    assert not Plan("forward", ("p",), (BIAS,), skips=True).branches
    assert not Plan("forward", ("p",), skips=True, whole_flat=frozenset({"p"})).branches
    by_row = AuxRead(0, Aux("f", ("h", "q_idx")))
    assert Plan("forward", ("p",), (by_row,), skips=True).branches


def test_the_text_is_read_in_every_locale():
    """Comments of the templates have letters that ASCII lacks."""
    program = """
from gdpa_inductor.kernels.blocked import fused
from gdpa_inductor.kernels.triton import template
names = {path.name.partition(".")[0] for path in template._SOURCES.iterdir()}
print(len([*map(template.source, names), fused.source()]))
"""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **locale}, capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) > 5, done.stderr[-500:]
