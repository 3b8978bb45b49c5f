"""When a Hopper or Blackwell device takes the CuTe kernels, and what is said when not."""

from dataclasses import replace

import pytest
import torch

from gdpa_inductor import lowerings
from gdpa_inductor.kernels.cute import certificates
from gdpa_inductor.lowerings import dispatch
from gdpa_inductor.lowerings.backends import backend
from gdpa_inductor.lowerings.cute import rules
from gdpa_inductor.options import Options
from gdpa_inductor.problem import Problem
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.rejection import Code
from gdpa_inductor.sources import source_hash
from tests.proving.certified import Device, a_device, certify  # noqa: F401 (a fixture)

from . import test_choose

BF16 = torch.bfloat16


def problem(**changes) -> Problem:
    if "program" in changes:
        changes["program"] = ScoreMod.parse(changes["program"])
    return replace(test_choose.problem(dv=64), **changes)


@pytest.fixture
def blackwell(monkeypatch: pytest.MonkeyPatch):
    """With a certificate."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (10, 0))
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    monkeypatch.setattr(certificates, "objection", lambda *_: "")


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "nvidia-cutlass-dsl is not installed"),
        ("4.7.0", "4.7.0 is not one of the tested versions"),
        ("5.0.0.dev1", "5.0.0.dev1 is not one of the tested versions"),
    ],
)
def test_without_a_tested_cutlass_it_is_triton(blackwell, monkeypatch, version, reason):
    monkeypatch.setattr(rules, "installed", lambda: version)
    choice = lowerings.choose(problem(), Options())
    assert choice.kernel == "triton"
    assert reason in choice.reason


@pytest.mark.usefixtures("blackwell")
def test_mostly_padded_scores_go_to_triton():
    """Their gradients would take that much memory."""
    few = {"jagged_query": True, "jagged_key": True, "total_rows": 2048, "total_cols": 2048}
    case = problem(**{**BIAS, **few, "batch": 8})
    choice = lowerings.choose(case, Options())
    assert choice.kernel == "triton" and "padded scores" in choice.reason
    for other in (replace(case, needs=(True,) * 3 + (False,)), replace(case, batch=2)):
        assert lowerings.choose(other, Options()).kernel == "cute"


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
@pytest.mark.parametrize("jagged", [{}, {"jagged_key": True, "total_cols": 1 << 20}])
def test_few_queries_go_to_triton(monkeypatch, capability: tuple[int, int], jagged: dict):
    """Tiles of at least 128 rows would be mostly empty."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    sizes = {"batch": 256, "cols": 4096, "value_dim": 128, "training": False, **jagged}
    choice = lowerings.choose(problem(rows=16, **sizes), Options())
    assert choice.kernel == "triton"
    assert "for up to 64 queries" in choice.reason
    if not jagged:
        assert lowerings.choose(problem(rows=128, **sizes), Options()).kernel == "cute"


@pytest.fixture
def hopper(blackwell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


def named(changes: dict) -> str:
    """The same in every process, as a program's own text is and its repr is not."""
    return ", ".join(f"{name}={value}" for name, value in changes.items())


LARGE = {"batch": 16, "heads": 4, "rows": 2048, "cols": 2048, "head_dim": 128, "value_dim": 128}
TOTAL = 16 * 2048
JAGGED = {"jagged_query": True, "jagged_key": True, "total_rows": TOTAL, "total_cols": TOTAL}
BACKWARD = {"needs": (True, True, True)}
NARROW = {"head_dim": 64, "value_dim": 64}
WIDE = {"head_dim": 256, "value_dim": 256, "training": False}
MASK = {
    "program": "a0:b[q_idx,kv_idx]; where(a0,silu(s),0.0)",
    "aux_dtypes": (torch.bool,),
}  # fmt: skip
MASKED_BIAS = {
    "program": "a0:b[q_idx,kv_idx]; a1:f[h,q_idx,kv_idx]; where(a0,silu(add(s,a1)),0.0)",
    "aux_dtypes": (torch.bool, BF16), "needs": (True, True, True, False, True),
}  # fmt: skip
BIAS = {
    "program": "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.1),a0))",
    "aux_dtypes": (BF16,), "needs": (True,) * 4,
}  # fmt: skip


TABLES = {
    "program": "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[t,h]; "
    "silu(add(add(s,lookup(a0,add(sub(q_idx,kv_idx),2047))),lookup(a2,a1)))",
    "aux_dtypes": (torch.float32, torch.uint8, torch.float32),
}  # fmt: skip
BIASED = "a0:f[q_idx,kv_idx]; where(ge(q_idx,kv_idx),{}(add(s,a0)),0.0)"
FP32 = {"aux_dtypes": (torch.float32,)}
SUMS = {"program": "t0=sigmoid(s); r=t0; t0"}
OF_SUMS = {  # the backward
    "program": "a0:f[b,h,q_idx]; t0=sigmoid(s); r=mul(a0,abs(t0)); t0",
    "aux_dtypes": (torch.float32,), "needs": (True, True, True, False),
}  # fmt: skip
OTHER_SUMS = "a0:f[b,h,q_idx]; t0=relu(s); r=mul(a0,t0); where(ge(q_idx,kv_idx),t0,0.0)"
GAU = {
    **LARGE, "program": "where(ge(q_idx,kv_idx),silu(s),0.0)", "batch": 8, "heads": 1,
    "rows": 4096, "cols": 4096, "value_dim": 1024, "training": False,
}  # fmt: skip
# Large problems on Hopper, and wide values in slices where that pays.
TAKEN = [
    {},
    NARROW,
    BACKWARD,
    {**BACKWARD, **NARROW},
    {**JAGGED, **NARROW},
    {"page": 16},
    {"page": 128, "jagged_query": True, "total_rows": TOTAL},
    {**JAGGED, "rows": 512},
    BIAS,
    {**NARROW, "rows": 512},
    {"rows": 256},
    {**BACKWARD, "rows": 256},
    {**BIAS, "rows": 256},
    {**BIAS, **NARROW, "rows": 512},
    {**BIAS, "needs": ()},
    MASK,
    {**MASK, **BACKWARD},
    {**MASK, **JAGGED},
    {**MASK, "program": "a0:b[b,-,-,kv_idx]; where(a0,silu(s),0.0)"},
    {**MASK, "program": "a0:b[q_idx,kv_idx]; where(a0,sigmoid(s),1.0)"},
    MASKED_BIAS,
    {**BIAS, **FP32},
    {**BIAS, **FP32, **JAGGED, "needs": ()},
    {**BIAS, **JAGGED},
    {**BIAS, **JAGGED, "batch": 32},
    WIDE,
    {**WIDE, "value_dim": 128},
    {**WIDE, **JAGGED},
    GAU,
    {**GAU, "batch": 32, "rows": 1024, "cols": 1024},
    {**GAU, "program": "relu(s)", "value_dim": 512},
    {**GAU, **FP32, "program": BIASED.format("relu")},
    {**GAU, **JAGGED, "heads": 4},
    TABLES,
    {**TABLES, **NARROW, "batch": 1, "rows": 1024, "cols": 1024},
    {**TABLES, "needs": (True, True, True, True, False, True)},
    {**TABLES, **JAGGED},
    SUMS,
    {**SUMS, **NARROW, "batch": 8},
    {**SUMS, **JAGGED},
    OF_SUMS,
    {**OF_SUMS, **NARROW},
]


@pytest.mark.parametrize("changes", TAKEN, ids=named)
def test_it_is_the_choice_of_hopper(hopper, changes: dict):
    assert lowerings.choose(problem(**{**LARGE, **changes}), Options()).kernel == "cute"


@pytest.mark.parametrize(("kernel", "choice"), [("auto", "cute"), ("cute",) * 2, ("triton",) * 2])
@pytest.mark.parametrize("dims", [{}, {"head_dim": 256, "value_dim": 136}, {"value_dim": 256}])
def test_it_is_the_choice_of_blackwell(blackwell, kernel: str, choice: str, dims: dict):
    case = problem(**dims, training=False)
    assert lowerings.choose(case, Options(kernel=kernel)).kernel == choice


def test_wide_values_run_in_slices_on_blackwell(blackwell):
    assert lowerings.choose(problem(**GAU), Options()).kernel == "cute"


DROPPED = "a0:i[]; mul(silu(s),float(ge(random16(a0,b,h,q_idx,kv_idx),6554)))"
MULTIPLES = "the CuTe kernel takes multiples of 8 up to 256"
SLICES = f"{MULTIPLES}; wider values run in equal slices of such a size"
OFF, ON = Options(profit=False), Options()
FULL = {"dtype": torch.float32, "value_dtype": torch.float32}
# The device, the problem, options, the kernel or None if it does not matter, and a reason.
LEFT = {
    "a head dim of 132": ("blackwell", {"head_dim": 132}, OFF, "triton", "a head dim of 132"),
    "a value dim of 20": ("blackwell", {"value_dim": 20}, OFF, "triton", "a head dim of 20"),
    "fp32": ("blackwell", FULL, OFF, "triton", "takes fp16 and bf16"),
    "few scores": ("hopper", {**GAU, "rows": 256, "cols": 256}, ON, None, "4 slices are estimated"),
    "nothing left out": (
        "hopper", {**GAU, "program": "relu(s)", "value_dim": 1536}, ON, None,
        "6 slices are estimated at",
    ),
    "a long function": (
        "hopper", {**GAU, **FP32, "program": BIASED.format("gelu")}, ON, None,
        "4 slices are estimated at",
    ),
    "no equal slices": (
        "hopper", {**GAU, "value_dim": 1032}, ON, None,
        f"a head dim of 1032 for the value; {SLICES}",
    ),
    "random bits": ("blackwell", {"program": DROPPED}, ON, "triton", "it draws no random numbers"),
    "keys in pages": ("blackwell", {"page": 16}, ON, "triton", "values that lie in order"),
    "odd pages": ("hopper", {**LARGE, "page": 24}, ON, "triton", "pages of 24 rows"),
    "wide heads in large pages": (
        "hopper", {**LARGE, "page": 128, "head_dim": 192}, OFF, "triton", "key blocks of 80",
    ),
    "row sums": ("blackwell", SUMS, OFF, "triton", "for Blackwell does not sum rows"),
    "the gradient of row sums": (
        "blackwell", OF_SUMS, OFF, "triton", "for Blackwell does not sum rows"
    ),
    "the gradient of sums of other terms": (
        "hopper", {**LARGE, **OF_SUMS, "program": OTHER_SUMS}, ON, "triton",
        "row sums of functions of the weights only",
    ),
    "a wide query": (
        "hopper", {**GAU, "head_dim": 512}, ON, None,
        f"a head dim of 512 for query and key; {MULTIPLES}",
    ),
    "training": (
        "hopper", {**GAU, "training": True}, ON, None, "the CuTe backward takes up to 128"
    ),
    "the backward of slices": (
        "hopper", {**GAU, "needs": (True,) * 3}, OFF, "chunked", "a head dim of 1024"
    ),
    "unbounded": (
        "hopper", {**LARGE, **BIAS, **JAGGED, "rows": TOTAL, "cols": TOTAL}, ON, "triton",
        "no `max_seqlen` bounds",
    ),
    "gate": (
        "hopper", {**LARGE, **BIAS, "program": "a0:f[h]; mul(a0,silu(s))"}, ON, "triton",
        "not added to the score, as a0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_others_take_what_is_left(name: str, request: pytest.FixtureRequest):
    device, changes, options, kernel, reason = LEFT[name]
    request.getfixturevalue(device)
    choice = lowerings.choose(problem(**changes), options)
    mine = getattr(choice, "kernel", "")
    assert mine != "cute" and mine == (kernel or mine) and reason in choice.reason


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "changes",
    [
        {**NARROW, "rows": 256},
        {"head_dim": 32, "value_dim": 32},
        {"value_dim": 64},
        {**BACKWARD, "head_dim": 32},
        {"rows": 128},
        {**WIDE, "rows": 256, "batch": 8},
        {**WIDE, "value_dim": 64},
        {**BACKWARD, "rows": 128},
        {**BIAS, "rows": 128},
        {**BIAS, **NARROW, "rows": 256},
        {**MASK, "rows": 256},
        {**MASKED_BIAS, "rows": 512},
        {**BIAS, "aux_dtypes": (torch.float32,), "needs": ()},
        {**MASK, **NARROW, "batch": 64},
        {**MASK, **NARROW, **BACKWARD},
        {**MASK, **WIDE},
        {**JAGGED, "batch": 1024, "rows": 128},
        {**JAGGED, "batch": 1024, "rows": 512, "cols": 512, "total_rows": 1024 * 10},
        {**JAGGED, "rows": TOTAL, "cols": TOTAL},
        {**BIAS, **JAGGED, "batch": 64},
    ],
    ids=named,
)
def test_hopper_prefers_triton_where_it_is_faster(changes: dict):
    case = problem(**{**LARGE, **changes})
    choice = lowerings.choose(case, Options())
    assert choice.kernel == "triton"
    assert "cute: on Hopper" in choice.reason and "Triton" in choice.reason
    assert lowerings.choose(case, Options(kernel="cute")).kernel == "cute"


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dim", [192, 256])
@pytest.mark.parametrize("batch, length", [(32, 1024), (16, 2048), (4, 8192)])
def test_training_at_wide_heads_has_a_backward_in_chunks(dim: int, batch: int, length: int):
    sizes = {"batch": batch, "rows": length, "cols": length, "head_dim": dim, "value_dim": dim}
    case, off = problem(**{**LARGE, **sizes, "training": True}), Options(profit=False)
    assert lowerings.choose(case, off).kernel == "chunked"
    assert lowerings.choose(replace(case, training=False), off).kernel == "cute"
    choice = lowerings.choose(replace(case, needs=(True,) * 3), off)
    assert choice.kernel == "chunked"
    assert f"a head dim of {dim}; the CuTe backward takes up to 128" in choice.reason


DROPOUT = "a0:i[]; mul(silu(s),float(ge(random16(a0,b,h,q_idx,kv_idx),6554)))"
UNFUSED = {
    "dropout": {"program": DROPOUT, "aux_dtypes": (torch.int64,)},
    "small": {"batch": 2},
    "jagged": {"jagged_query": True, "jagged_key": True, "total_rows": 4096, "total_cols": 4096},
    "fp32": {"dtype": torch.float32, "value_dtype": torch.float32},
}


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", UNFUSED)
def test_other_training_at_wide_heads_is_left_unfused(name: str):
    """Its backward would be Triton's, which is slower than the unfused form."""
    case = problem(**{**LARGE, **WIDE, "training": True, **UNFUSED[name]})
    assert not lowerings.choose(case, Options())
    assert not lowerings.choose(case, Options(profit="memory"))


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_training_at_wide_heads_is_left_unfused_elsewhere(capability: tuple, monkeypatch):
    """The kernel of P and dS has tiles for Hopper alone. What was rewritten all the same is
    lowered by Triton."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    case = problem(**{**LARGE, **WIDE, "training": True})
    assert lowerings.choose(case, Options()).code is Code.SLOWER
    backward = replace(case, needs=(True,) * 3)
    assert lowerings.choose(backward, Options(profit=False)).kernel == "triton"


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("width", [512, 768, 1024, 1280, 1536])
@pytest.mark.parametrize("length", [512, 1024, 4096])
def test_what_a_report_says_of_training_is_how_its_forward_is_lowered(width: int, length: int):
    """The backward is in chunks either way, so slices are compared with a forward of chunks."""
    sizes = {"value_dim": width, "rows": length, "cols": length}
    options = {**GAU, **sizes, "program": "relu(s)"}
    off = Options(profit=False)
    said = lowerings.choose(problem(**{**options, "training": True}), off)
    assert said.kernel == lowerings.choose(problem(**options), off).kernel


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("size", ["batch", "rows", "cols"])
def test_slices_without_scores_can_be_lowered(size: str):
    case = problem(**{**GAU, size: 0})
    assert lowerings.choose(case, Options(profit=False)).kernel in ("cute", "chunked")


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)], ids=str)
@pytest.mark.parametrize("dims", [(64, 0), (0, 64), (0, 0)], ids=str)
def test_values_without_channels_are_no_slices(capability: tuple, dims: tuple, monkeypatch):
    """Their number was divided by the width of one."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    case = problem(**{**GAU, "head_dim": dims[0], "value_dim": dims[1]})
    assert lowerings.choose(case, Options(profit=False)).kernel == "chunked"


@pytest.mark.usefixtures("hopper")
def test_slices_leave_nothing_to_chunks_that_these_refuse():
    """One sequence, which no `max_seqlen` bounds."""
    bounds = {"batch": 1, "heads": 1, "rows": TOTAL, "cols": TOTAL}
    options = {**GAU, **JAGGED, **bounds, "program": "relu(s)"}
    refusal = backend("chunked").refusal(problem(**options), profit=False)
    assert refusal is not None and "without a bound" in str(refusal[1])
    assert lowerings.choose(problem(**options), Options()).kernel == "cute"


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize("kernel", ["auto", "cute"])
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 9), (10, 1), (11, 0), (12, 0), (12, 1)])
def test_other_gpus_get_triton(monkeypatch, capability: tuple[int, int], kernel: str):
    """B300 had major 10 too, and was given code for `sm_100a`, which it cannot load."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    choice = lowerings.choose(problem(), Options(kernel=kernel))
    assert choice.kernel == "triton"
    reason = "needs compute capability 9.0, 10.0 or 10.3, this device has {}.{}".format(*capability)
    # Of GPUs that are older than all CuTe kernels nobody expects them.
    assert (reason in choice.reason) == (kernel == "cute" or capability > (9, 0))


# Certificates


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")


def kernel_of(**changes) -> str:
    return lowerings.choose(problem(**{**LARGE, **changes}), Options()).kernel


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("capability", [(10, 0), (10, 3)])
def test_blackwell_without_a_certificate_is_tritons(device: Device, capability: tuple[int, int]):
    """The first user's first step trusted an emulator."""
    device(*capability)
    choice = lowerings.choose(problem(**LARGE), Options())
    assert choice.kernel == "triton"
    assert f"no certificate on this machine yet ({certificates.PROVE})" in choice.reason
    certify()
    assert lowerings.choose(problem(**LARGE), Options()).kernel == "cute"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
def test_a_failed_family_is_tritons_and_no_other(device: Device, capability: tuple[int, int]):
    device(*capability)
    path = certify({"backward": "Error: an illegal address"})
    assert kernel_of() == "cute"
    choice = lowerings.choose(problem(**LARGE, **BACKWARD), Options())
    assert choice.kernel == "triton"
    assert "an illegal address" in choice.reason and str(path) in choice.reason
    # Gradients of biases come from the same kernels, and from more.
    assert kernel_of(**BIAS) == "triton"
    certify({"biases": "wrong"})
    assert (kernel_of(**BACKWARD), kernel_of(**BIAS)) == ("cute", "triton")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
def test_triton_runs_the_shapes_on_which_it_was_faster(device: Device, capability: tuple):
    device(*capability)
    assert certificates.shape_of(True, 128) != certificates.shape_of(False, 128)
    slow = f"backward, {certificates.shape_of(True, 128)}"
    certify(speeds={slow: {"cute": 2.0, "triton": 1.0}})
    choice = lowerings.choose(problem(**LARGE, **JAGGED, **BACKWARD), Options())
    assert choice.kernel == "triton"
    assert f"Triton was faster here, 1.000 ms against 2.000 ms ({slow})" in choice.reason
    assert [kernel_of(**x) for x in (JAGGED, BACKWARD, {})] == ["cute"] * 3


@pytest.mark.usefixtures("installed")
def test_by_name_the_certificate_is_skipped_with_a_warning(device: Device, caplog):
    device(10, 0)
    choice = lowerings.choose(problem(**LARGE), Options(kernel="cute"))
    assert choice.kernel == "cute" and "no certificate" in choice.reason
    for _ in range(2):
        dispatch.warn_of(choice)
    assert caplog.text.count("runs because it was asked for by name: the kernels for") == 1
    certify()
    choice = lowerings.choose(problem(**LARGE), Options(kernel="cute"))
    assert choice.doubt == "" and "certificate" not in choice.reason


@pytest.mark.usefixtures("installed")
def test_what_the_kernels_do_not_take_says_so_first(device: Device):
    """To prove kernels would not help."""
    device(10, 0)
    wanted = {"dtype": torch.float32, "value_dtype": torch.float32}
    reason = lowerings.choose(problem(**LARGE, **wanted), Options()).reason
    assert "fp16 and bf16" in reason and "certificate" not in reason


def test_the_tag_of_caches_follows_certificates(device: Device):
    device(10, 0)
    before = lowerings.cache_tag()
    certify()
    assert before == source_hash() and lowerings.cache_tag().startswith(f"{before}-")
