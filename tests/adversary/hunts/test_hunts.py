"""Every program of every hunt: the rewritten graph against eager."""

import copy

import pytest
import torch

from tests.adversary.capture import PLAIN, Capture, judged_options
from tests.adversary.judging import _gross

from . import Case, cases

# Hunts print their own figures; here a result is equal, or within a few roundings of its dtype.
RELATIVE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}


def observe(case: Case, function, made) -> dict:
    """Outputs, arguments afterwards and gradients, with the names of `judging`."""
    arguments, parameters = made
    torch.manual_seed(1)
    returned = function(*arguments)
    returned = returned if isinstance(returned, tuple) else (returned,)
    seen = {f"output {i}": x.detach().clone() for i, x in enumerate(returned) if torch.is_tensor(x)}
    if case.before_backward is not None:
        case.before_backward(*arguments)
    asked = [x for x in returned if torch.is_tensor(x) and x.requires_grad]
    if asked:
        weights = [torch.linspace(-1, 1, x.numel()).view(x.shape).to(x.dtype) for x in asked]
        torch.autograd.backward(asked, weights)
    for i, x in enumerate((*arguments, *parameters)):
        if torch.is_tensor(x):
            seen[f"argument {i} afterwards"] = x.detach().clone()
            sparse = x.grad is not None and x.grad.is_sparse
            seen[f"gradient of {i}"] = x.grad.to_dense() if sparse else x.grad
            seen[f"gradient of {i} is sparse"] = torch.tensor(sparse)
    return seen


def made(case: Case):
    """Fresh arguments, and a fresh module where the function is one."""
    torch.manual_seed(0)
    arguments = case.make_arguments()
    function = case.function
    if isinstance(function, torch.nn.Module):
        function = copy.deepcopy(function)
        return function, (arguments, (*function.parameters(), *function.buffers()))
    return function, (arguments, ())


def unlike(mine: dict, eager: dict) -> str:
    assert mine.keys() == eager.keys()
    for name, theirs in eager.items():
        fault = _gross(name, mine[name], theirs)
        if fault == "?":
            finite = theirs.isfinite()
            same = torch.equal(mine[name].isfinite(), finite)
            bound = RELATIVE[theirs.dtype] * theirs[finite].abs().amax() if finite.any() else 0.0
            apart = (mine[name] - theirs)[finite].abs()
            fault = "" if bool((apart <= bound).all()) else f"off by {apart.amax()}"
            fault = fault if same else "NaN or infinity in other places than eager"
        if fault:
            return f"{name}: {fault}"
    return ""


MORE = [pytest.param(case, marks=pytest.mark.slow) for case in cases("MORE")]


@pytest.mark.parametrize("case", [*cases(), *MORE], ids=lambda case: case.name)
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_rewritten_as_in_eager(case):
    function, operands = made(case)
    eager = observe(case, function, operands)
    for name, options in judged_options("both").items():
        capture = Capture({name: options}, current=name)
        function, operands = made(case)
        torch._dynamo.reset()
        mine = observe(case, torch.compile(function, backend=capture, dynamic=False), operands)
        fault = unlike(mine, eager) or capture.fault(name)
        if fault:
            capture.current = PLAIN
            function, operands = made(case)
            torch._dynamo.reset()
            plain = torch.compile(function, backend=capture, dynamic=False)
            assert unlike(observe(case, plain, operands), eager), f"judge {name}: {fault}"
