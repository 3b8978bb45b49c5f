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


PROGRAM = f"""
from gdpa_inductor.kernels.blocked import fused
from gdpa_inductor.kernels.triton import template
from gdpa_inductor.kernels.triton.template import Plan
names = {{path.name.partition(".")[0] for path in template._SOURCES.iterdir()}}
print({MADE}, len([*map(template.source, names), fused.source()]))
"""


def test_the_name_and_the_text_are_the_same_in_every_process():
    """Under another seed of hashes; and in every locale, as comments of the templates have letters
    that ASCII lacks.
    """
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command, printed = [sys.executable, "-c", PROGRAM], []
    for here in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", **locale}):
        env = {**os.environ, **here}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-500:]
        printed.append(done.stdout.split())
    (name, count), other = printed
    assert other == [name, count] and int(count) > 5
