"""The table of docs/masks.md: its figures are those of the masks, and the masks are exact."""

from pathlib import Path

import pytest

from tests import mask_table

DOCS = Path(__file__).parents[2] / "docs" / "masks.md"
# Masks whose full tiles are not all found, and why; and those whose zero tiles are not.
INEXACT = {
    "HSTU, not causal": "the diagonal is open by two conditions, each of which is mixed",
    "HSTU, targets, not causal": "the same",
    "HSTU, window, full tail": "the tile where the tail begins, for the same reason",
    "HSTU, targets, window, full tail": "the same",
    "HSTU, all of it": "the same",
}
UNBOUNDED = ("padding, an operand [B, N]", "segments, operands [B, M]")


def measured() -> dict[str, mask_table.Shares]:
    return {mask.name: mask_table.shares(mask) for mask in mask_table.MASKS}


@pytest.fixture(scope="module")
def measured_shares() -> dict[str, mask_table.Shares]:
    return measured()


def test_the_docs_have_the_measured_table(measured_shares: dict[str, mask_table.Shares]):
    rows = [shares.row(name) for name, shares in measured_shares.items()]
    text = DOCS.read_text()
    assert [row for row in rows if row not in text] == [], "run python -m tests.mask_table"


def test_masks_are_classified_exactly(measured_shares: dict[str, mask_table.Shares]):
    for name, shares in measured_shares.items():
        of_zero, of_full = shares.zero == shares.all_masked, shares.full == shares.all_open
        wanted = (False, False) if name in UNBOUNDED else (True, name not in INEXACT)
        assert (of_zero, of_full) == wanted, f"{name}: {shares}"
