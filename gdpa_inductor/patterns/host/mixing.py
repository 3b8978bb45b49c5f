"""Functions that are not pointwise, and the code with which weights made by them are refused."""

from __future__ import annotations

from ...rejection import Code

# fmt: off
# Functions that are not pointwise, by name.
MIXING: dict[str, Code] = {
    **dict.fromkeys([
        "_softmax", "softmax", "_log_softmax", "log_softmax", "_safe_softmax", "logsumexp",
        "sum", "mean", "var", "std", "var_mean", "std_mean", "amax", "amin", "max", "min",
        "norm", "linalg_vector_norm", "native_layer_norm", "native_group_norm",
        "_fused_rms_norm", "native_batch_norm", "_native_batch_norm_legit", "renorm", "prod",
        "nansum",
    ], Code.NORMALISED),
    **dict.fromkeys([
        "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort", "topk", "kthvalue",
        "median", "argmax", "argmin", "argsort", "any", "all", "count_nonzero", "nonzero",
        "_cummax_helper", "_cummin_helper", "bincount", "histc",
    ], Code.REDUCTION),
    **dict.fromkeys([
        "flip", "roll", "index", "index_select", "gather", "constant_pad_nd", "slice", "select",
        "diagonal", "unfold", "as_strided", "cat", "stack", "split", "split_with_sizes",
        "unbind", "repeat", "convolution", "scatter", "diagonal_copy", "reflection_pad2d",
        "replication_pad2d", "avg_pool2d", "upsample_bilinear2d", "im2col",
    ], Code.CROSS_ELEMENT),
    **dict.fromkeys([
        "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter",
        "index_put", "masked_scatter", "index_fill", "index_copy", "index_add", "scatter_add",
    ], Code.MUTATED_SCORES),
    **dict.fromkeys([
        "native_dropout", "bernoulli", "rand_like", "randn_like", "randint_like", "uniform",
        "normal", "normal_functional", "rrelu_with_noise_functional", "rrelu_with_noise",
        "rand", "randn", "exponential", "multinomial", "poisson",
    ], Code.DROPOUT),
}
# fmt: on

# The text of a refusal after the name of the function.
REASONS: dict[Code, str] = {
    Code.NORMALISED: "normalises or sums the scores along a dimension",
    Code.REDUCTION: "reduces or scans the scores",
    Code.CROSS_ELEMENT: "moves scores to other positions",
    Code.MUTATED_SCORES: "changes a part of the scores in place",
    Code.DROPOUT: "draws random numbers",
    Code.POINTWISE_OP: "is not in the vocabulary of score programs",
}

# Functions that are refused by name, so that softmax attention costs no trace. The trace would give
# the same refusal.
NO_WEIGHTS = {
    **dict.fromkeys(
        ["softmin", "gumbel_softmax", "normalize", "layer_norm", "group_norm", "rms_norm"],
        Code.NORMALISED,
    ),
    **{name: code for name, code in MIXING.items() if code in (Code.NORMALISED, Code.REDUCTION)},
}
for _binary_as_well in ("max", "min"):
    del NO_WEIGHTS[_binary_as_well]
