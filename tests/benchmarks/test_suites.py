"""What the suites ask for."""

import itertools

from benchmarks.cases import Case, formula, operands
from benchmarks.suites import DENSE_SHAPES, LENGTHS, Selection, cpu, dense, grid, wide


def pick(device: str = "cuda", **chosen: tuple) -> Selection:
    return Selection(device=device, seconds=0.1, **chosen)


def test_flops_are_those_of_two_products():
    case = Case("silu", "none", 64, 4, 512, 128, "bfloat16", "cuda")
    assert case.flops == 2 * (2 * 64 * 4 * 512 * 512 * 128)


def test_dense_holds_every_shape_activation_variant_and_contender():
    rows = {
        (job.case.activation, job.case.variant, job.case.length, name, measure)
        for job in dense(pick())
        for name in job.contenders
        for measure in job.measures
    }
    lengths = [shape[2] for shape in DENSE_SHAPES]
    both = ("forward", "step")
    for activation, length in itertools.product(("silu", "gelu_tanh"), lengths):
        for name, measure in itertools.product(("gdpa", "inductor", "eager", "max-autotune"), both):
            assert (activation, "none", length, name, measure) in rows
        for variant, name in itertools.product(("causal", "bias", "buckets"), ("gdpa", "inductor")):
            assert (activation, variant, length, name, "step") in rows
        assert (activation, "none", length, "gdpa", "backward") in rows
    for length, name in itertools.product(lengths, ("cudnn", "flex")):
        assert ("silu", "none", length, name, "backward") in rows


def test_grid_is_types_by_head_dims_by_lengths():
    rows = {(j.case.dtype, j.case.precision, j.case.head_dim, j.case.length) for j in grid(pick())}
    types = (("float32", "highest"), ("float32", "high"), ("bfloat16", "highest"))
    dims = (32, 64, 128, 256)
    assert rows == {(*t, d, n) for t, d, n in itertools.product(types, dims, LENGTHS)}


def test_wide_holds_what_goes_in_chunks():
    jobs = wide(pick())
    kinds = {(j.case.dtype, j.case.heads, j.case.head_dim, j.case.value_dim) for j in jobs}
    assert {("bfloat16", 1, 128, 1024), ("bfloat16", 4, 256, 256), ("float32", 4, 64, 64)} <= kinds
    names = {name for job in jobs for name in job.contenders}
    assert names == {"gdpa", "gdpa-chunked", "gdpa-triton", "inductor"}
    only = wide(pick(dtypes=("float32",), shapes=((16, 4, 1024, 64),)))
    assert {(j.case.dtype, j.case.length) for j in only} == {("float32", 1024)}


def test_on_a_cpu_contenders_take_turns_in_one_job():
    jobs = cpu(pick("cpu"))
    assert all(set(job.contenders) == {"gdpa", "inductor"} for job in jobs)
    assert [job.case.length for job in jobs] == [512, 1024, 2048, 4096]
    assert {(j.case.batch, j.case.heads, j.case.head_dim, j.case.dtype) for j in jobs} == {
        (2, 4, 64, "float32")
    }


def test_selection_narrows():
    chosen = pick(contenders=("inductor",), shapes=((1, 2, 64, 32),), activations=("relu",))
    for suite in (dense, grid, cpu):
        jobs = suite(chosen)
        assert jobs
        assert {name for job in jobs for name in job.contenders} == {"inductor"}
        assert {(job.case.activation, job.case.length) for job in jobs} == {("relu", 64)}


def test_operands_fit_the_formula_and_only_floats_want_gradients():
    for variant, count in (("none", 3), ("causal", 4), ("bias", 4), ("buckets", 5)):
        case = Case("silu", variant, 2, 3, 8, 4, "float32", "cpu")
        tensors = operands(case)
        assert len(tensors) == count
        assert formula(case)(*tensors).shape == (2, 3, 8, 4)
        assert [t.requires_grad for t in tensors] == [t.is_floating_point() for t in tensors]
