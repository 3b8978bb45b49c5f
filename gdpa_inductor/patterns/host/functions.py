"""Tables of what torch's functions do, by their short names.

Names are those of `facts.name`, such as "matmul", "mul_" or "mT". A name means the same in Dynamo's
graphs (operators, torch functions, methods) and in exported ones (ATen).
"""

from __future__ import annotations

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
# Functions that take the dtype and device of a tensor, and nothing else of it.
FACTORIES = frozenset(["new_empty", "new_full", "new_ones", "new_zeros"])
# fmt: on
