"""How people spell the parts of attention: products, activations, scales, masks. Tables of text.

{q} {k} {v} {s} {w} {x} stand for names; b h n m d e for sizes, which the program has as variables.
"""

# Products over [B, H, N, D]. The share of the plain forms is larger, as it is in real code.
FIRST = {
    "@ transpose": "{q} @ {k}.transpose(-2, -1)",
    "@ mT": "{q} @ {k}.mT",
    "matmul": "torch.matmul({q}, {k}.transpose(-1, -2))",
    "matmul permute": "torch.matmul({q}, {k}.permute({swap}))",
    "method": "{q}.matmul({k}.mT)",
    "einsum": 'torch.einsum("{o}nd,{o}md->{o}nm", {q}, {k})',
    "einsum ellipsis": 'torch.einsum("...nd,...md->...nm", {q}, {k})',
    "bmm": "torch.bmm({q}.reshape(-1, n, d), {k}.reshape(-1, m, d).mT).view({outer}, n, m)",
    "baddbmm": "torch.baddbmm({q}.new_zeros(()), {q}.reshape(-1, n, d), "
    "{k}.reshape(-1, m, d).transpose(1, 2), beta=0, alpha=0.5).view({outer}, n, m)",
}
RARE_FIRST = {
    "linalg": "torch.linalg.matmul({q}, {k}.mT)",
    "__matmul__": "{q}.__matmul__({k}.mT)",
    "flipped": "({k} @ {q}.mT).mT",
}
SECOND = {
    "@": "{w} @ {v}",
    "matmul": "torch.matmul({w}, {v})",
    "method": "{w}.matmul({v})",
    "einsum": 'torch.einsum("{o}nm,{o}me->{o}ne", {w}, {v})',
    "einsum ellipsis": 'torch.einsum("...nm,...me->...ne", {w}, {v})',
    "bmm": "torch.bmm({w}.reshape(-1, n, m), {v}.reshape(-1, m, {v}.shape[-1]))"
    ".view({outer}, n, {v}.shape[-1])",
}
RARE_SECOND = {
    "linalg": "torch.linalg.matmul({w}, {v})",
    "flipped": "({v}.mT @ {w}.mT).mT",
}

# Activations, from torch.nn.functional and the pointwise functions. "output": autograd keeps the
# result, so that a later write to it raises in eager.
ACTIVATIONS = {
    "F.relu({s})": "output",
    "torch.relu({s})": "output",
    "{s}.relu()": "output",
    "F.silu({s})": "",
    "{s} * torch.sigmoid({s})": "",
    "F.gelu({s})": "",
    'F.gelu({s}, approximate="tanh")': "",
    "torch.sigmoid({s})": "output",
    "{s}.sigmoid()": "output",
    "torch.tanh({s})": "output",
    "F.softplus({s})": "",
    "F.elu({s})": "output",
    "F.celu({s}, alpha=0.5)": "output",
    "F.selu({s})": "output",
    "F.leaky_relu({s}, 0.2)": "",
    "F.hardswish({s})": "",
    "F.hardsigmoid({s})": "",
    "F.hardtanh({s}, -0.7, 0.9)": "",
    "F.relu6({s})": "",
    "F.mish({s})": "",
    "F.softsign({s})": "",
    "F.logsigmoid({s})": "",
    "F.relu({s}).square()": "",
    "F.relu({s}) ** 2": "",
    "{s}.clamp(min=0)": "",
    "torch.clamp({s}, -1.0, 0.5)": "",
    "{s}.square()": "",
    "{s}.abs()": "",
    "torch.exp(-{s}.square())": "output",
    "torch.erf({s})": "",
    "{s} / (1 + {s}.abs())": "",
    "torch.where({s} > 0, {s}, 0.1 * {s})": "",
    "torch.sin({s})": "",
    "{s} * 0.5 * (1 + torch.tanh({s}))": "",
    "1 / (1 + torch.exp(-{s}))": "",
    "torch.maximum({s}, torch.zeros_like({s}))": "",
}
# Pointwise functions that a fused program need not know. A rewrite is not promised.
EXOTIC = {
    "torch.nan_to_num({s}, nan=0.5, posinf=2.0, neginf=-2.0)": "",
    "torch.erfc({s})": "",
    "torch.logaddexp({s}, torch.zeros_like({s}))": "",
    "torch.atan({s})": "",
    "torch.cosh({s}.clamp(-2, 2))": "",
    "torch.sinh({s}.clamp(-2, 2))": "",
    "torch.asinh({s})": "",
    "torch.expm1({s}.clamp(max=1))": "output",
    "torch.sinc({s})": "",
    "torch.special.ndtr({s})": "",
    "torch.special.log_ndtr({s})": "",
    "torch.special.i0e({s})": "",
    "torch.special.xlog1py({s}, {s}.square())": "",
    "torch.hypot({s}, torch.ones_like({s}))": "",
    "torch.atan2({s}, torch.ones_like({s}))": "",
    "torch.copysign(torch.ones_like({s}), {s}) * {s}": "",
    "torch.fmod({s}, 1.0)": "",
    "torch.remainder({s}, 1.0)": "",
    "torch.frac({s})": "",
    "torch.heaviside({s}.detach(), torch.ones_like({s}).detach()) * {s}": "",
    "torch.lerp(torch.zeros_like({s}), {s}, 0.3)": "",
    "torch.lerp({s}, torch.full_like({s}, -1e9), ({s} > 0).to({s}.dtype))": "",
    "torch.lerp(torch.full_like({s}, 1e9), {s}, torch.sigmoid({s}).round())": "",
    "torch.addcmul({s}, {s}, {s}, value=0.5)": "",
    "torch.addcdiv({s}, {s}, {s}.square() + 1, value=0.5)": "",
    "torch.fmax({s}, torch.zeros_like({s}))": "",
    "torch.fmin({s}, torch.ones_like({s}))": "",
    "torch.logit({s}.clamp(0.1, 0.9))": "",
    "torch.sgn({s}) * {s}": "",
    "torch.float_power({s}.abs() + 0.1, 0.5).to({s}.dtype)": "",
    "{s}.abs().add(1).log2()": "",
    "{s}.abs().add(1).rsqrt()": "output",
    "torch.reciprocal({s}.square() + 1)": "output",
    "torch.pow(2.0, {s}.clamp(max=2))": "output",
    "torch.pow({s}.square() + 1, torch.full_like({s}, 0.5))": "output",
    "torch.rsub({s}, 1.0)": "",
    "torch.clip({s}, max=torch.ones_like({s}))": "",
    "F.hardshrink({s}, 0.3)": "",
    "F.softshrink({s}, 0.3)": "",
    "F.tanhshrink({s})": "",
    "F.threshold({s}, 0.1, -0.2)": "",
    "F.prelu({s}, torch.full((1,), 0.3, dtype={s}.dtype))": "",
    "F.rrelu({s}, 0.2, 0.2)": "",
    "torch.threshold({s}, 0.0, 1.0)": "",
    "torch.special.entr({s}.sigmoid())": "",
    "torch.where({s}.isfinite(), {s}, 0.0)": "",
    "torch.where(torch.signbit({s}), 0.0, {s})": "",
    "torch.empty_like({s}).copy_({s})": "",
    "torch.zeros_like({s}) + {s}": "",
    "{s}.masked_scatter({s} > 0, torch.ones_like({s}))": "",
    "torch.where({s} == {s}.round(), {s}, {s} * 2)": "",
    "torch.nextafter({s}.detach(), torch.zeros_like({s}).detach()) + {s}": "",
    "torch.ldexp({s}, torch.ones((), dtype=torch.int32))": "",
    "torch.complex({s}.float(), {s}.float()).abs().to({s}.dtype)": "",
}

# At NaN these give one gradient in torch's vectorised loop and another one in its remainder; the
# last one underflows, and 0 beside an infinite value is NaN where a tiny number is not.
INCONSISTENT = (
    "F.elu({s})",
    "F.celu({s}, alpha=0.5)",
    "F.selu({s})",
    "F.hardswish({s})",
    "F.hardtanh({s}, -0.7, 0.9)",
    "F.relu6({s})",
    "F.hardshrink({s}, 0.3)",
    "F.softshrink({s}, 0.3)",
    "torch.special.i0e({s})",
    "torch.complex({s}.float(), {s}.float()).abs().to({s}.dtype)",
    "torch.exp(-{s}.square())",
)

SCALES = (
    "{s} * d ** -0.5",
    "{s} / d ** 0.5",
    "{s} / math.sqrt(d)",
    "{s} * 0.25",
    "{s}.mul(0.5)",
    "{s} / m",
    "torch.div({s}, 3.0)",
    "{s} * 2 - 0.5",
    "-{s}",
)

# How a truth value of the mask acts on the weights.
MASKING = (
    "{w}.masked_fill(~{x}, 0.0)",
    "{w}.masked_fill({x}.logical_not(), 0)",
    "torch.where({x}, {w}, 0.0)",
    "torch.where({x}, {w}, torch.zeros_like({w}))",
    "{w} * {x}",
    "{w} * {x}.to({w}.dtype)",
    "{x} * {w}",
    "{w}.where({x}, 0)",
)
