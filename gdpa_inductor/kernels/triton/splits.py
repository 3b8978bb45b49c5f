"""Into how many shares the keys of the forward are parted, where rows are few.

A CTA owns a tile of rows and all keys. A few queries of a few long sequences are then a few CTAs,
and most multiprocessors are idle. So each CTA takes a share of the keys and stores a partial sum of
O in fp32; GDPA has no softmax, so partial sums add up as they are. A second kernel adds them in the
order of the shares, so that results have equal bits from run to run.
"""

from __future__ import annotations

STEP = 64  # keys, about, of one step
LEAST_KEYS = 256  # of a share
MOST = 32  # shares: the second kernel reads them one after the other
MOST_BYTES = 64 << 20  # of partial sums
MOST_ROWS = 128  # of a sequence: one tile
FEW_ROWS = 32  # of a tile, whose CTA waits for memory
_RESIDENT = 2  # CTAs that share a multiprocessor
_AROUND = 4  # steps that the beginning and the end of a CTA take
_ADDING = 4  # steps that the second kernel takes, by itself


def shares(ctas: int, keys: int, processors: int, partial: int) -> int:
    """How many shares finish first, in steps of a CTA; a power of two.

    ctas: how many there are without shares. keys: of a sequence, at most. partial: bytes of one
    share's partial sums.
    """

    def steps(count: int) -> int:
        each = -(-keys // (count * STEP)) + _AROUND
        waves = -(-ctas * count // (_RESIDENT * processors))
        return waves * each + (_ADDING if count > 1 else 0)

    possible = [1]
    while 2 * possible[-1] <= min(MOST, keys // LEAST_KEYS, MOST_BYTES // max(1, partial)):
        possible.append(2 * possible[-1])
    return min(possible, key=steps)
