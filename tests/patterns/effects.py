"""How tests of effects judge: the rewritten graph, run eagerly, against eager.

Compared are outputs, operands as the call left them, gradients, and which operands get one at all.
"""

import torch

from tests._recorder import Recorder
from tests.patterns.rows import proving

B, H, N, M, D = 2, 3, 8, 8, 4  # square, so that a transposed operand fits as well


def drawn(*shape, dtype=torch.float32, grad=True):
    return torch.randn(*shape).to(dtype).requires_grad_(grad)


def heads(dtype=torch.float32, grad=True):
    return [drawn(B, H, size, D, dtype=dtype, grad=grad) for size in (N, M, M)]


def run(function, operands, training=True, between=lambda *operands: None):
    """Outputs, operands afterwards, gradients; `between` acts between forward and backward."""
    own = [
        x.detach().clone().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x
        for x in operands
    ]
    with torch.set_grad_enabled(training):
        outputs = function(*own)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    actual = [x.detach().clone() for x in outputs]
    tensors = [x for x in own if torch.is_tensor(x)]
    actual += [x.detach().clone() for x in tensors]
    between(*own)
    requested = [x for x in outputs if x.requires_grad]
    if requested:
        torch.autograd.backward(requested, [torch.full_like(x, 0.1) for x in requested])
    return actual + [x.grad for x in tensors]


def same(mine, theirs):
    for position, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        assert (a is None) == (b is None), f"result {position}: {a} where eager has {b}"
        if a is not None and a.numel():
            assert a.dtype == b.dtype and a.shape == b.shape
            relative = 2.0**-6 if a.dtype == torch.bfloat16 else 2.0**-17
            apart = (a.double() - b.double()).abs().max().item()
            bound = relative * max(b.double().abs().max().item(), 1e-3)
            assert apart <= bound, f"result {position} is {apart} off, of {b.abs().max()}"


def judged(function, operands, backend=None, **how):
    """As eager, by the recorder or a backend of another name; the recorder."""
    torch.manual_seed(0)
    recorder = Recorder()
    options = {"gdpa.profit": False} if backend == "gdpa" else None
    compiled = torch.compile(function, backend=backend or recorder, fullgraph=True, options=options)
    theirs = run(function, operands, **how)
    same(run(compiled, operands, **how), theirs)
    return recorder


def fused(function, operands, regions=1, **how):
    recorder = judged(function, operands, **how)
    assert len(recorder.matches) == regions, recorder.why()
    return recorder


def refused(code, function, operands, **how):
    recorder = judged(function, operands, **how)
    assert [r.code.name for r in recorder.rejections] == [code], recorder.why()
    assert recorder.untouched


# Tests of programs; the operands are those that a function makes.
is_exact = proving(lambda program, operands, **how: judged(program, operands(), **how))
is_fused = proving(lambda program, operands, **how: fused(program, operands(), **how))
is_refused = proving(
    lambda program, code, operands, **how: refused(code, program, operands(), **how)
)


LENGTHS = torch.tensor([3, 6])


def frozen():
    """Query, key and value of which only the query trains."""
    return [drawn(B, H, N, D), drawn(B, H, M, D, grad=False), drawn(B, H, M, D, grad=False)]
