"""Mutation of our own kernels: the shares that must be caught, subject by subject."""

import pytest

pytest.importorskip("cutlass")

from tests.emulator.mutate import SHARES, examine, report

from .cute_subjects import SUBJECTS


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_mutants_of_our_kernels_are_caught(name):
    outcome = examine(SUBJECTS[name])
    assert outcome.enough(), report(name, outcome)
    assert all(outcome.share(kind)[1] for kind in SHARES)
