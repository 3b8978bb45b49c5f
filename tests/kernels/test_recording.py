"""The steps of a chunked call: noted once, repeated on other tensors, with as little memory."""

import weakref

import pytest
import torch

from gdpa_inductor import lowerings
from gdpa_inductor.kernels.blocked import chunks, loop
from gdpa_inductor.kernels.blocked import operands as block_operands
from gdpa_inductor.kernels.blocked.fused import StoredPass
from gdpa_inductor.kernels.blocked.recording import Immediate, StepRecorder
from gdpa_inductor.lowerings import weights
from gdpa_inductor.lowerings.blocked import chunked_call
from tests.lowerings.operators import canonical

lowerings.register()
CAUSAL = canonical("where(ge(q_idx,kv_idx),silu(mul(s,0.125)),0.0)")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    """Some chunks a call, uncompiled."""
    monkeypatch.setattr(chunks, "SCORES", 16 * 20 * 20)
    monkeypatch.setattr(loop, "compiled", lambda work, *_, **__: work)
    chunks.passes.cache_clear()
    loop._RECORDINGS.clear()
    yield
    chunks.passes.cache_clear()
    loop._RECORDINGS.clear()


def step(query, key, value, grad, text=CAUSAL) -> list[torch.Tensor]:
    arguments = (query, key, value, [], [], text)
    backward = torch.ops.gdpa.attention_chunked_backward(grad, *arguments, [True] * 3)
    return [torch.ops.gdpa.attention_chunked(*arguments), *backward]


def reference(query, key, value, grad, text=CAUSAL) -> list[torch.Tensor]:
    arguments = (query, key, value, [], [], text)
    backward = torch.ops.gdpa.attention_backward(grad, *arguments, [True] * 3, "")
    return [torch.ops.gdpa.attention(*arguments, ""), *backward]


def operands(joined: bool) -> list[torch.Tensor]:
    """Each a tensor of its own, or all views of one; with the same strides."""
    whole = torch.randn(2, 2, 4 * 50, 16, dtype=torch.float64)
    views = list(whole.split(50, dim=2))
    if joined:
        return views
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for t in views]


def test_a_recording_does_not_mind_where_operands_lie():
    for joined in (True, False, True):
        inputs = operands(joined)
        torch.testing.assert_close(step(*inputs), reference(*inputs), rtol=1e-10, atol=1e-10)
    assert len(loop._RECORDINGS) == 2


def test_a_second_call_plans_nothing(monkeypatch: pytest.MonkeyPatch):
    step(*operands(False))
    monkeypatch.setattr(loop, "BlockLoop", None)
    step(*operands(False))


def test_what_is_not_kept_runs_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "MOST_RECORDED", 1)
    inputs = operands(False)
    torch.testing.assert_close(step(*inputs), reference(*inputs), rtol=1e-10, atol=1e-10)
    assert not loop._RECORDINGS


def test_few_recordings_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "RECORDINGS", 2)
    for length in (30, 40, 50):
        step(*(torch.randn(2, 2, length, 16) for _ in range(4)))
    assert len(loop._RECORDINGS) == 2


def test_what_a_step_makes_ends_with_its_last_use():
    alive: list[weakref.ref] = []

    def make(x: torch.Tensor) -> tuple[torch.Tensor]:
        assert not any(ref() is not None for ref in alive)
        result = x + 1
        alive.append(weakref.ref(result))
        return (result,)

    x, out = torch.randn(3, 4), torch.empty(4, 3)
    for steps in (Immediate([x, out]), StepRecorder([x, out])):
        alive.clear()
        for _ in range(3):
            (result,) = steps.make(make, [steps.bases[0]], (x.dtype, (3, 4)))
            steps.do(torch.Tensor.copy_, steps.bases[1], result.mT)
            del result
        if isinstance(steps, StepRecorder):
            steps.recording().run([x, out])
        assert len(alive) == 3 and torch.equal(out, (x + 1).mT)
        out.zero_()


BIASED = canonical("a0:f[h,q_idx,kv_idx]; where(ge(q_idx,kv_idx),silu(add(s,a0)),0.0)")


@pytest.mark.parametrize("asked", [(True, True, True), (False, True, False)], ids=str)
@pytest.mark.parametrize("text", [CAUSAL, BIASED], ids=["causal", "biased"])
def test_a_call_of_the_generated_code_is_repeated(text: str, asked: tuple, monkeypatch):
    """With other tensors, of other addresses and numbers."""
    calls = chunked_call(False), chunked_call(True)
    for later in (False, True):
        if later:
            monkeypatch.setattr(loop, "BlockLoop", None)
        *arguments, grad = operands(False)
        aux = [torch.randn(2, 50, 50, dtype=torch.float64)] if text == BIASED else []
        arguments = (*arguments, aux, [], text)
        needs = [*asked, *(False for _ in aux)]
        results = [calls[0](*arguments), *calls[1](grad, *arguments, needs)]
        wanted = torch.ops.gdpa.attention_backward(grad, *arguments, needs, "")
        wanted = [torch.ops.gdpa.attention(*arguments, ""), *wanted]
        torch.testing.assert_close(results, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rows", [0, 50])
def test_a_call_that_cannot_be_repeated_is_run_as_the_first_one(rows: int, monkeypatch):
    """There are no scores, or more chunks than are noted."""
    monkeypatch.setattr(loop, "MOST_RECORDED", 1)
    for _ in range(2):
        query, key, value = (torch.randn(2, 2, n, 16, dtype=torch.float64) for n in (rows, 50, 50))
        inputs = query, key, value, torch.randn_like(query)
        torch.testing.assert_close(step(*inputs), reference(*inputs), rtol=1e-10, atol=1e-10)
    assert not loop._RECORDINGS


def test_gradients_that_are_zero_are_so_each_time():
    """A constant has no gradient of Q and K."""
    text = canonical("where(ge(q_idx,kv_idx),0.5,0.0)")
    for _ in range(3):
        inputs = operands(False)
        results = step(*inputs, text)
        torch.testing.assert_close(results, reference(*inputs, text), rtol=1e-10, atol=1e-10)
        del results


class Kernel:
    """In place of one that fills P and dS: where it was told to put them."""

    def __init__(self, chunk: StoredPass) -> None:
        self.chunk = chunk
        self.places: list[tuple[int, int]] = []

    def __call__(self, query, key, value, grad_out, weight, slope, *operands) -> None:
        self.places.append((weight.data_ptr(), slope.data_ptr()))
        made = self.chunk(query, key, value, grad_out, *operands)
        for place, result in zip((weight, slope), made, strict=True):
            place.copy_(result)


@pytest.mark.parametrize("text", [CAUSAL, "silu(mul(s,0.125))"], ids=["causal", "dense"])
@pytest.mark.parametrize("directly", [True, False])
@pytest.mark.parametrize("most", [1, loop.MOST_RECORDED], ids=["at once", "recorded"])
def test_p_and_ds_by_one_kernel(
    text: str, directly: bool, most: int, monkeypatch: pytest.MonkeyPatch
):
    """A kernel that is called as it is fills the same memory for all chunks. One that Inductor
    compiles returns new memory.
    """
    kernels: list[Kernel] = []

    def direct(chunk: StoredPass, *_: object) -> Kernel | None:
        kernels.append(Kernel(chunk))
        return kernels[-1] if directly else None

    monkeypatch.setattr(loop, "MOST_RECORDED", most)
    monkeypatch.setattr(weights, "direct", direct)
    monkeypatch.setattr(block_operands, "stores", lambda *_: True)
    monkeypatch.setattr(loop, "fixed", lambda work, *_: work)
    monkeypatch.setattr(chunks, "STORED", 2 * 8 * 20 * 20)
    for joined in (True, False):
        inputs, text = operands(joined), canonical(text)
        for _ in range(2):
            torch.testing.assert_close(
                step(*inputs, text), reference(*inputs, text), rtol=1e-10, atol=1e-10
            )
    placed = [kernel.places for kernel in kernels if kernel.places]
    assert bool(placed) == directly
    runs = 1 if most == 1 else 4  # of a kernel; a recording keeps it
    assert all(len(set(places)) <= runs < len(places) for places in placed)


@pytest.mark.parametrize("access", ["h,q_idx,kv_idx", "q_idx,kv_idx", "b,h,q_idx,kv_idx"])
@pytest.mark.parametrize("heads", [2, 1], ids=["own keys", "shared keys"])
def test_gradients_of_biases_are_summed_from_what_is_stored(
    access: str, heads: int, monkeypatch: pytest.MonkeyPatch
):
    """Of a bias that batches share, chunks have several batches of one head."""
    monkeypatch.setattr(block_operands, "stores", lambda *_: True)
    monkeypatch.setattr(loop, "fixed", lambda work, *_: work)
    monkeypatch.setattr(chunks, "STORED", 2 * 8 * 2 * 30 * 40)  # 2 of 8 units
    text = canonical(f"a0:f[{access}]; silu(add(mul(s,0.125),a0))")
    sizes = {"b": 4, "h": 2, "q_idx": 30, "kv_idx": 40}
    make = lambda *size: torch.randn(size, dtype=torch.float64)
    query, grad = make(4, 2, 30, 16), make(4, 2, 30, 16)
    key, value = make(4, heads, 40, 16), make(4, heads, 40, 16)
    bias = make(*(sizes[x] for x in access.split(",")))
    for _ in range(2):
        arguments = (grad, query, key, value, [bias], [], text, [True] * 4)
        results = torch.ops.gdpa.attention_chunked_backward(*arguments)
        expected = torch.ops.gdpa.attention_backward(*arguments, "")
        torch.testing.assert_close(results, expected, rtol=1e-10, atol=1e-10)
