"""docs/gallery.md: its pictures are what the kernels' classification says, and that is true."""

import pytest
import torch

from docs.tools import gallery
from docs.tools.gallery import MASKS, STATES, TILE, N


def test_the_page_and_its_pictures_are_current():
    """Else: python -m docs.tools.gallery"""
    texts = gallery.pages()
    assert set(texts) - {gallery.PAGE} == set(gallery.PICTURES.glob("*.svg"))
    assert len(texts) > 20
    for path, words in texts.items():
        assert path.read_text() == words, path.name


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.name)
def test_a_tile_is_what_its_colour_says(mask: gallery.Mask):
    """Element by element: a skipped tile has no score that counts, a whole one none that does
    not.
    """
    classes, _ = gallery.states(mask)
    operands = () if mask.operand is None else (mask.operand,)
    keep = mask.keep(torch.arange(N)[:, None], torch.arange(N), *operands).expand(2, 2, N, N)
    tiles = keep.unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE))
    some, every = tiles.any(5).any(3), tiles.all(5).all(3)
    names = list(STATES)
    assert not (some & (classes == names.index("skipped"))).any()
    assert every[classes == names.index("computed whole")].all()
    assert (classes == names.index("skipped")).float().mean() > 0.35
