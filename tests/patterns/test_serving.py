"""Few queries over a cache: a few new tokens of each sequence attend to all keys of it."""

import pytest
import torch
import torch.nn.functional as F

import gdpa_inductor
from tests._recorder import Recorder
from tests.jagged import offsets_of, pad
from tests.operands import generator_of

N, HEADS, DIM, NEW = 24, 2, 8, 3
LENGTHS = ((24, 7, 12), (3, 24, 5))
captured = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)


def operands(lengths, rows: int = NEW) -> tuple[torch.Tensor, ...]:
    """query [B, H, rows, D], key and value [L, H, D], offsets."""
    generator = generator_of(sum(lengths))
    drawn = lambda *shape: torch.randn(*shape, generator=generator)
    jagged = [drawn(sum(lengths), HEADS, DIM) for _ in range(2)]
    return drawn(len(lengths), HEADS, rows, DIM), *jagged, offsets_of(lengths)


def weights(query, key, ends):
    padded = pad(key, ends, N).transpose(1, 2)
    return F.silu(query @ padded.mT * DIM**-0.5) / N


def whole(query, key, value, ends):
    return weights(query, key, ends) @ pad(value, ends, N).transpose(1, 2)


def causal(query, key, value, ends):
    """The last rows of each sequence, by their places."""
    rows = query.shape[2]
    place = (ends[1:] - ends[:-1])[:, None] - rows + torch.arange(rows)
    seen = torch.arange(N) <= place[:, None, :, None]
    return (weights(query, key, ends) * seen) @ pad(value, ends, N).transpose(1, 2)


def chosen(query, key, value, ends):
    """The same, as HSTU has it: rows of a mask of all rows, chosen by another mask."""
    actual = weights(query, key, ends)
    rows, lengths = query.shape[2], (ends[1:] - ends[:-1])[:, None]
    place = torch.arange(N)
    new = (place >= lengths - rows) & (place < lengths)
    every = (place <= place[:, None]).expand(len(lengths), N, N)
    seen = every.flatten(0, 1)[new.view(-1), :].view(-1, rows, N)
    return (actual * seen.unsqueeze(1)) @ pad(value, ends, N).transpose(1, 2)


def judged(function, rows: int) -> list:
    """The matches; the values are eager's for every batch of lengths."""
    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder, fullgraph=True)
    with torch.no_grad():
        for lengths in LENGTHS:
            inputs = operands(lengths, rows)
            torch.testing.assert_close(compiled(*inputs), function(*inputs))
    return recorder.matches


@pytest.mark.parametrize("rows", [1, NEW])
@pytest.mark.parametrize("function", [whole, causal])
def test_keys_are_not_padded(function, rows: int):
    for match in judged(function, rows):
        assert match.problem.jagged_key and not match.problem.jagged_query and not match.notes
        assert all("q_idx" not in spec.access for spec in match.problem.program.aux)


@captured
def test_rows_of_a_mask_that_elements_choose_are_an_operand():
    for match in judged(chosen, NEW):
        assert match.problem.jagged_key and not match.notes
        assert [spec.access for spec in match.problem.program.aux] == [("b", "q_idx", "kv_idx")]


def test_a_mask_that_breaks_the_graph_is_named_with_what_to_set():
    inputs = operands(LENGTHS[0])
    report = gdpa_inductor.explain(chosen, profit=False)(*inputs)
    (actual,) = report.graph_breaks
    assert not report.matches and "test_serving.py:" in actual.location
    assert "capture_dynamic_output_shape_ops = True" in actual.advice
    with captured:
        assert gdpa_inductor.explain(chosen, profit=False)(*inputs).matches


@captured
def test_a_compiled_model_raises_where_the_mask_has_other_rows():
    """As eager does: a sequence is shorter than the new rows."""
    compiled = torch.compile(
        chosen, backend="gdpa", fullgraph=True, options={"gdpa.profit": False, "gdpa.strict": True}
    )
    with torch.no_grad():
        inputs = operands(LENGTHS[0])
        torch.testing.assert_close(compiled(*inputs), chosen(*inputs))
        short = operands((24, 7, 2))
        for function in (chosen, compiled):
            with pytest.raises(RuntimeError):
                function(*short)


def test_a_cache_that_is_written_first_is_read_as_written():
    def step(query, new, key, value, place):
        key.index_copy_(2, place, new)
        value.index_copy_(2, place, new)
        return F.silu(query @ key.mT) @ value

    def drawn():
        generator = generator_of(1)
        sizes = [(2, HEADS, n, DIM) for n in (1, 1, N, N)]
        return *(torch.randn(size, generator=generator) for size in sizes), torch.tensor([5])

    recorder = Recorder()
    with torch.no_grad():
        mine, eager = drawn(), drawn()
        actual = torch.compile(step, backend=recorder, fullgraph=True)(*mine)
        torch.testing.assert_close(actual, step(*eager))
    assert recorder.matches and torch.equal(mine[2], eager[2])
