"""Each program of the table: as eager, and rewritten or refused as the table says."""

import pytest
import torch

from tests.patterns import effects_later_table  # noqa: F401  (registers its programs)
from tests.patterns.effects import fused, refused
from tests.patterns.effects_table import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    function, operands, code, how = PROGRAMS[name]
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        if code is None:
            fused(function, operands(), **how)
        else:
            refused(code, function, operands(), **how)
