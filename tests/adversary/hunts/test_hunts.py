"""Every program of every hunt: the rewritten graph against eager.

A result is equal, or within a few roundings of the narrowest dtype of the program. Past that the
error rule decides, with the program in fp64 as the truth. In 16 bits a rounding of the scores may
turn a decision, which the fused call makes in fp32: there results may move as far as eager's do
when its operands move by one rounding.
"""

import contextlib
import copy
from dataclasses import dataclass
from functools import cached_property, partial

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.adversary.capture import PLAIN, Capture, judged_options
from tests.adversary.judging import FP64, _gross, furthest, largest
from tests.tolerances import error_of

from . import Case, cases

RELATIVE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}


def observe(case: Case, function, operands) -> dict:
    """Outputs, arguments afterwards and gradients, with the names of `judging`."""
    arguments, parameters = operands
    torch.manual_seed(1)
    returned = function(*arguments)
    returned = returned if isinstance(returned, tuple) else (returned,)
    seen = {f"output {i}": x.detach().clone() for i, x in enumerate(returned) if torch.is_tensor(x)}
    if case.before_backward is not None:
        case.before_backward(*arguments)
    asked = [x for x in returned if torch.is_tensor(x) and x.requires_grad]
    if asked:
        weights = [_cotangent(x) for x in asked]
        torch.autograd.backward(asked, weights)
    for i, x in enumerate((*arguments, *parameters)):
        if torch.is_tensor(x):
            seen[f"argument {i} afterwards"] = x.detach().clone()
            sparse = x.grad is not None and x.grad.is_sparse
            seen[f"gradient of {i}"] = x.grad.to_dense() if sparse else x.grad
            seen[f"gradient of {i} is sparse"] = torch.tensor(sparse)
    return seen


def _cotangent(x: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view(x.shape).to(x.dtype)


def fresh(case: Case):
    """Fresh arguments, and a fresh module where the function is one."""
    torch.manual_seed(0)
    arguments = case.make_arguments()
    function = case.function
    if isinstance(function, torch.nn.Module):
        function = copy.deepcopy(function)
        return function, (arguments, (*function.parameters(), *function.buffers()))
    return function, (arguments, ())


class InDoubles(TorchFunctionMode):
    """Every precision that a program names becomes fp64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("half", "bfloat16", "float"):
            func = torch.Tensor.double
        args, kwargs = tree_map(self._widened, (args, kwargs or {}))
        return func(*args, **kwargs)

    @staticmethod
    def _widened(x):
        floating = isinstance(x, torch.dtype) and x.is_floating_point
        return torch.float64 if floating else x


class Widths(TorchDispatchMode):
    """Notes the floating dtypes that are computed with. Bodies of `cond` and its like are run
    without it.
    """

    def __init__(self):
        super().__init__()
        self.seen = {torch.float64}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen |= {x.dtype for x in tree_leaves(result) if torch.is_tensor(x)} & RELATIVE.keys()
        return result

    @property
    def narrowest(self) -> torch.dtype:
        return max(self.seen, key=lambda dtype: torch.finfo(dtype).eps)


@dataclass
class Eager:
    """What a program gives in eager."""

    case: Case

    @cached_property
    def seen(self) -> dict:
        return observe(self.case, *fresh(self.case))

    @cached_property
    def narrowest(self) -> torch.dtype:
        """The least precise dtype that it computes in, fp64 where that is not known."""
        widths = Widths()
        with contextlib.suppress(NotImplementedError), widths:
            observe(self.case, *fresh(self.case))
        return widths.narrowest

    @cached_property
    def truth(self) -> dict:
        """The program in fp64; eager's own results where it has no such form."""
        if self.narrowest == torch.float64:
            return self.seen
        try:
            with InDoubles():
                return observe(self.case, *moved(self.case, dtype=torch.float64))
        except Exception:
            return self.seen

    @cached_property
    def noise(self) -> dict[str, float]:
        """How far 16-bit results move when operands move by one rounding."""
        worst = dict.fromkeys(self.seen, 0.0)
        eps = torch.finfo(self.narrowest).eps
        for draw in range(4 if eps > 1e-4 else 0):
            seen = observe(self.case, *moved(self.case, eps=eps, draw=draw))
            for name, value in self.seen.items():
                if torch.is_tensor(value) and value.is_floating_point():
                    worst[name] = max(worst[name], furthest(seen[name], value))
        return worst

    def unlike(self, mine: dict) -> str:
        """The first result that differs by more than rounding, or ""."""
        assert mine.keys() == self.seen.keys()
        for name, theirs in self.seen.items():
            fault = _gross(name, mine[name], theirs)
            if fault == "?":
                fault = self._fault(name, mine[name], theirs)
            if fault:
                return f"{name}: {fault}"
        return ""

    def _fault(self, name: str, mine, theirs) -> str:
        direction = "backward" if name.startswith("gradient") else "forward"
        size = largest(theirs)
        relative = max(RELATIVE[self.narrowest], FP64[direction])
        judged = partial(error_of, mine, theirs, self.truth[name], direction=direction)
        fault = judged(relative=relative, noise=relative * size)
        if fault and (noise := self.noise[name]):
            fault = judged(relative=noise / max(size, 1.0), noise=noise)
        return fault or ""


def moved(case: Case, dtype: torch.dtype | None = None, eps: float = 0.0, draw: int = 0):
    """Fresh arguments in another dtype, or a rounding away."""
    function, (arguments, parameters) = fresh(case)
    generator = torch.Generator().manual_seed(draw)

    def move(x):
        if not torch.is_tensor(x) or not x.is_floating_point():
            return x
        sign = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
        moved = (x.detach().double() * (1 + eps * sign)).to(dtype or x.dtype)
        return moved.requires_grad_(x.requires_grad)

    if dtype is not None and isinstance(function, torch.nn.Module):
        function.to(dtype)
        parameters = (*function.parameters(), *function.buffers())
    return function, (tuple(map(move, arguments)), parameters)


MORE = [pytest.param(case, marks=pytest.mark.slow) for case in cases("MORE")]


@pytest.mark.parametrize("case", [*cases(), *MORE], ids=lambda case: case.name)
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_rewritten_as_in_eager(case, request: pytest.FixtureRequest):
    if case.name.endswith("specials_through_gelu"):
        request.getfixturevalue("torchs_own_loops")
    eager = Eager(case)
    capture = Capture(judged_options("on"), current="on")

    def fault_of_run() -> str:
        function, operands = fresh(case)
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=capture, dynamic=False)
        return eager.unlike(observe(case, compiled, operands))

    fault = fault_of_run() or capture.fault("on")
    if fault:
        capture.current = PLAIN
        assert fault_of_run(), fault  # Dynamo alone is unlike eager too
