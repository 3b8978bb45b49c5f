"""Tables of what torch's functions do, by their short names.

Names are those of `facts.name`, such as "matmul", "mul_" or "mT". A name means the same in Dynamo's
graphs (operators, torch functions, methods) and in exported ones (ATen).
"""

from __future__ import annotations

from ...rejection import Code

# fmt: off
# Matrix products by their short names. Some have an addend before the factors, such as `baddbmm`.
PRODUCTS = frozenset([
    "matmul", "linalg_matmul", "__matmul__", "__rmatmul__", "imatmul", "bmm", "mm", "baddbmm",
    "addmm", "einsum", "linear", "tensordot", "inner", "linalg_multi_dot", "chain_matmul",
])
CONVOLUTIONS = frozenset([
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution",
])
# Views whose result always shares storage with the first argument, and depends on nothing else but
# sizes.
VIEWS = frozenset([
    "transpose", "permute", "unsqueeze", "squeeze", "expand", "expand_as", "view", "view_as",
    "unflatten", "t", "swapaxes", "swapdims", "movedim", "moveaxis", "mT", "T", "alias",
])
# Functions that may come between a pad or a gather of pages and a product, or between a product and
# an unpad.
LAYOUTS = VIEWS | {
    "reshape", "flatten", "contiguous", "clone", "chunk", "split", "split_with_sizes", "unbind",
    "getitem", "select", "narrow", "unsafe_chunk",
}
# Calls that may read a table at an index.
LOOKUPS = frozenset([
    "getitem", "index", "index_select", "gather", "embedding", "take_along_dim",
])
# Calls that put the elements of a tensor elsewhere, and compute nothing.
REARRANGES = VIEWS | {
    "getitem", "slice", "select", "narrow", "pad", "constant_pad_nd", "repeat", "tile", "reshape",
    "flatten", "contiguous", "clone", "broadcast_to", "roll", "flip", "cat", "concat",
    "concatenate",
}
CASTS = frozenset([
    "to", "type", "type_as", "half", "bfloat16", "float", "double", "int", "long", "short",
    "char", "byte", "bool", "_to_copy",
])
# Point-wise functions of masks and biases, by their names in any graph.
POINTWISE = frozenset([
    "add", "sub", "mul", "truediv", "div", "floordiv", "floor_divide", "mod", "remainder",
    "neg", "abs", "pow", "lt", "le", "gt", "ge", "eq", "ne", "and_", "or_", "xor", "invert",
    "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or",
    "bitwise_not", "bitwise_xor", "__and__", "__or__", "where", "masked_fill", "clamp",
    "clamp_min", "clamp_max", "minimum", "maximum", "tril", "triu", "exp", "exp2", "sigmoid",
    "rsub",
    "fmod", "max", "min", "lshift", "rshift", "bitwise_left_shift", "bitwise_right_shift",
    "__lshift__", "__rshift__", "zeros_like", "ones_like", "full_like",
])
# Tensors that are functions of their indices alone.
CREATIONS = frozenset(["arange", "ones", "zeros", "full", "eye", "scalar_tensor"])
# Functions that read a size and nothing else of a tensor.
SHAPES = frozenset([
    "size", "sym_size", "numel", "sym_numel", "dim", "shape", "len", "__len__", "stride",
    "sym_stride",
])
# What export puts before a cast: an assertion of a dtype and a device, as they are known anyway.
ASSERTIONS = frozenset(["_assert_tensor_metadata"])
# Functions that return their argument itself where its strides allow it, and else a copy.
MAY_ALIAS = CASTS | {"reshape", "reshape_as", "contiguous", "flatten", "ravel"}
# Functions whose result is the argument itself without its history: autograd does not see that a
# write through it changes the argument. Nor does `.data` tell the version counter.
SILENT = frozenset(["_get_data_attr", "data"])
DETACHING = SILENT | {"detach"}
# In-place calls that change no element. There are those that cut a tensor from its history, those
# that give it other dims or strides, and those that give it another storage.
CUTS = frozenset(["detach_", "requires_grad_"])
# Calls whose result has no history, in whatever graph.
HISTORYLESS = DETACHING | {"detach_"}
RESHAPES = frozenset([
    "t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_",
])
MOVES = frozenset(["set_", "resize_", "resize_as_", "_set_data", "set_data", "swap_tensors"])
# Calls that see the gradient of what they are given.
WATCHERS = frozenset([
    "grad", "backward", "retain_grad", "register_hook", "register_post_accumulate_grad_hook",
])
# They write without a new version: the backward of an earlier call reads what they wrote.
UNVERSIONED = frozenset(["fused_moving_avg_obs_fake_quant", "_fused_moving_avg_obs_fq_helper"])
# Functions that take the dtype and device of a tensor, and nothing else of it.
FACTORIES = frozenset(["new_empty", "new_full", "new_ones", "new_zeros"])
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
