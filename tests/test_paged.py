"""Keys and values in pages: the operators on them, and compiled serving code against eager."""

import pytest
import torch
import torch.nn.functional as F

import gdpa_inductor.lowerings  # noqa: F401  # it defines gdpa::attention_chunked
from gdpa_inductor import GDPAError
from gdpa_inductor.ops import ATTENTION
from tests._recorder import Recorder
from tests.patterns.pages import FORMS as PATTERNS
from tests.patterns.pages import B, D, H, M, N, P, R, operands
from tests.test_ops import OPCHECKS
from tests.tolerances import error_of

gdpa = torch.ops.gdpa
PROGRAM = "a0:i[b]; where(lt(kv_idx,a0),silu(s),0.0)"
OFFSETS = torch.tensor([0, 4, 4, 9])  # of jagged queries
FORMS = {
    "attention": lambda *args: gdpa.attention(*args[:6], "", *args[6:]),
    "cpu": gdpa.attention_cpu,
    "chunked": gdpa.attention_chunked,
}


def arguments(jagged: bool = False, **changes) -> list:
    """Those of gdpa::attention_cpu."""
    query, keys, values, table, lengths = operands()
    given = {"query": query, "table": table.clamp(min=0)} | changes
    lengths_of_sides = (OFFSETS, None, M, 0) if jagged else (None, None, 0, 0)
    query = given["query"].transpose(1, 2).flatten(0, 1)[:9] if jagged else given["query"]
    pools = (pool.transpose(1, 2) for pool in (keys, values))
    return [query, *pools, [lengths], [], PROGRAM, *lengths_of_sides, given["table"]]


def copied(args: list) -> list:
    """The same call on copies of the pages, in order."""
    *args, table = args
    table = table.expand(B, -1).long()
    args[1:3] = (pool[table].transpose(1, 2).flatten(2, 3) for pool in args[1:3])
    return args


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("jagged", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_pages_are_read_as_their_copy_is(name: str, jagged: bool, dtype: torch.dtype):
    args = arguments(jagged)
    args[-1] = args[-1].to(dtype)
    torch.testing.assert_close(FORMS[name](*args), gdpa.attention_cpu(*copied(args)))


@pytest.mark.parametrize("name", FORMS)
def test_a_shared_table(name: str):
    args = arguments(table=torch.tensor([[3, 1, 3, 0, 10, 2]]))
    torch.testing.assert_close(FORMS[name](*args), gdpa.attention_cpu(*copied(args)))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("page", [-1, P, 2**40])
def test_a_page_that_is_not_there_is_nan(name: str, page: int):
    """In its own sequence, masked or not."""
    args = arguments()
    args[-1][1, -1] = page
    out = FORMS[name](*args)
    assert out[1].isnan().all() and out[[0, 2]].isfinite().all()


def test_opcheck():
    args = arguments()
    torch.library.opcheck(gdpa.attention.default, (*args[:6], "", *args[6:]), test_utils=OPCHECKS)
    torch.library.opcheck(gdpa.attention_cpu.default, tuple(args), test_utils=OPCHECKS)


def test_there_is_no_gradient():
    query = operands()[0].requires_grad_()
    with pytest.raises(GDPAError, match="no gradient of keys in pages"):
        FORMS["attention"](*arguments(query=query))


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (10, torch.zeros(B, 2), "page_table must be integers"),
        (10, torch.zeros(B, dtype=torch.int64), "page_table must be integers"),
        (10, torch.zeros(B + 1, 2, dtype=torch.int64), "batch of page_table"),
        (2, torch.zeros(P + 1, H, R, D), "number of pages of key and value: 11 and 12"),
        (2, torch.zeros(P, H, R + 1, D), "length of key and value"),
        (1, torch.zeros(0, H, R, D), "number of pages of key and value"),
    ],
)
def test_operands_that_do_not_fit(place: int, value: torch.Tensor, reason: str):
    args = arguments()
    args[place] = value
    with pytest.raises(GDPAError, match=reason):
        FORMS["attention"](*args)


def test_keys_are_in_pages_or_jagged():
    args = arguments()
    args[7] = OFFSETS
    with pytest.raises(GDPAError, match=r"key must be \[total length|not both"):
        FORMS["attention"](*args)


def test_the_table_ends_the_schema():
    """Programs that were exported before have calls without it."""
    assert ATTENTION.positional[-1] == "page_table"
    args = copied(arguments())
    torch.testing.assert_close(gdpa.attention(*args[:6], ""), gdpa.attention_cpu(*args))


# Compiled serving code


OPTIONS = {"gdpa.profit": False, "gdpa.expect": 1}


class Layer(torch.nn.Module):
    """An HSTU layer that serves: new rows are written to their pages, then all pages are read."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(H * D)
        self.uvqk = torch.nn.Linear(H * D, 4 * H * D)
        self.out = torch.nn.Linear(H * D, H * D)

    def forward(self, x, cache, table, seen):
        """x [B, new, H·D]; cache [2, P, R, H, D]; seen [B]: the rows in the cache."""
        new = x.shape[1]
        u, *projections = F.silu(self.uvqk(self.norm(x))).chunk(4, -1)
        value, query, key = (p.unflatten(-1, (H, D)) for p in projections)
        place = seen[:, None] + torch.arange(new)
        page, row = table.gather(1, place // R), place % R
        cache[0].index_put_((page, row), key)
        cache[1][page, row] = value
        keys, values = (cache[side][table].flatten(1, 2) for side in (0, 1))
        scores = torch.einsum("bmhd,bnhd->bhmn", query, keys)
        mask = torch.arange(keys.shape[1]) <= place[:, None, :, None]
        weights = F.silu(scores * D**-0.5) / N * mask
        read = torch.einsum("bhmn,bnhd->bmhd", weights, values).flatten(-2)
        return x + self.out(F.layer_norm(read, (H * D,)) * u)


def test_prefill_and_decode():
    """Outputs by the error rule. Caches have the bits that they have without this package: those of
    eager, as rewritten graphs are run here, and those of stock Inductor. Tables end in -1.
    """
    layer, recorder = Layer().requires_grad_(False), Recorder()
    compiled = {
        "eager": layer,
        "rewritten": torch.compile(layer, backend=recorder),
        "inductor": torch.compile(layer),
        "gdpa": torch.compile(layer, backend="gdpa", options=OPTIONS),
    }
    cache, seen = torch.zeros(2, B * 4, R, H, D), torch.tensor([0, 2, 3])
    pages = torch.randperm(B * 4).view(B, 4)
    caches, exact = {name: cache.clone() for name in compiled}, cache.double()
    for new in (4, *[1] * 8):
        x = torch.randn(B, new, H * D)
        table = pages.masked_fill(torch.arange(4) * R >= (seen + new)[:, None], -1)
        with torch.no_grad():
            outs = {name: run(x, caches[name], table, seen) for name, run in compiled.items()}
            truth = layer.double()(x.double(), exact, table, seen)
            layer.float()
        for name in ("rewritten", "gdpa"):
            assert not error_of(outs[name], outs["eager"], truth, direction="forward")
        assert torch.equal(caches["rewritten"], caches["eager"])
        assert torch.equal(caches["gdpa"], caches["inductor"])
        seen += new
    assert all(match.problem.page == R and not match.notes for match in recorder.matches)


WRITERS = [function for function in PATTERNS if "written" in function.__name__]


@pytest.mark.parametrize("function", WRITERS, ids=lambda function: function.__name__)
def test_writes_stay_in_order(function):
    """In functional graphs too, whose writes Inductor puts in place again."""
    mine, eager = operands(), operands()
    with torch.no_grad():
        expected = function(*eager)
        actual = torch.compile(function, backend="gdpa", options=OPTIONS)(*mine)
    torch.testing.assert_close(actual, expected)
    assert all(map(torch.equal, mine, eager))
