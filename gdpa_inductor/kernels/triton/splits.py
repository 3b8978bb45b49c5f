"""Into how many shares the keys of a forward are cut, if there are few queries.

A CTA usually owns a tile of queries and all keys. With few queries and few long sequences there are
few CTAs, and most multiprocessors are idle. So each CTA takes a share of the keys, and stores a
partial sum of O in fp32. There is no softmax, so partial sums need no rescaling. A second kernel
adds them in a fixed order, so results are bitwise equal from run to run.
"""

from __future__ import annotations

STEP = 64  # keys of a step, about
LEAST_KEYS = 256  # the fewest keys of a share
MOST = 32  # the most shares; the second kernel reads them one after the other
MOST_BYTES = 64 << 20  # the most bytes of partial sums
MOST_ROWS = 128  # the most queries of a sequence: one tile
FEW_ROWS = 32  # with so few queries a CTA waits for memory
_RESIDENT = 2  # CTAs that share a multiprocessor
_AROUND = 4  # the time of the beginning and the end of a CTA, in steps
_ADDING = 4  # the time of the second kernel, in steps


def shares(ctas: int, keys: int, processors: int, partial: int) -> int:
    """The number of shares that finishes first, by an estimate in steps of a CTA: a power of two.

    ctas: How many there are without shares. partial: The bytes of the partial sums of one share.
    """

    def steps(count: int) -> int:
        each = -(-keys // (count * STEP)) + _AROUND
        waves = -(-ctas * count // (_RESIDENT * processors))
        return waves * each + (_ADDING if count > 1 else 0)

    possible = [1]
    while 2 * possible[-1] <= min(MOST, keys // LEAST_KEYS, MOST_BYTES // max(1, partial)):
        possible.append(2 * possible[-1])
    return min(possible, key=steps)
