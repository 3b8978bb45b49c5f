"""What the scenarios of `edges.py` are made of: their registry, models, checks."""

import ctypes
import functools
import importlib.util
import os
import signal
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.integration.programs import SMALL, function
from tests.integration.threads import Warnings, results, state

Run = Callable[..., Tensor]
SCENARIOS: dict[str, Callable[[], None]] = {}
COLD: set[str] = set()  # those that need a parent that has not imported the package
PACKAGE = str(Path(importlib.util.find_spec("gdpa_inductor").origin).parent)
WARNINGS = Warnings()
MIB = 2**20


def scenario(*cases: object, cold: bool = False) -> Callable[[Callable], Callable]:
    """Register a function: once, or once for each case, which it is given."""

    def register(function: Callable) -> Callable:
        for arguments in [(case,) for case in cases] or [()]:
            name = "_".join([function.__name__, *map(str, arguments)])
            SCENARIOS[name] = functools.partial(function, *arguments)
            COLD.update([name] if cold else [])
        return function

    return register


def require(holds: object, what: object) -> None:
    """An assertion that `python -O` keeps."""
    if not holds:
        raise AssertionError(what)


def operands(n: int = 32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(2, 2, n, 16, generator=generator).requires_grad_() for _ in range(3)]


def compiled(model: Run = function, **settings: object) -> Run:
    return torch.compile(model, backend="gdpa", options=SMALL, **settings)


def direct(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    import gdpa_inductor

    return gdpa_inductor.attention(q, k, v, score_mod=lambda s, *_: F.silu(s * 0.25))


@functools.cache
def warm() -> Run:
    """The model that the parent has compiled."""
    return compiled()


def equal(outputs: Iterable[Tensor], n: int = 32, reference: Run = function) -> None:
    """Result and gradients are those of eager."""
    for mine, theirs in zip(outputs, results(reference, operands(n)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def check(run: Run, n: int = 32, reference: Run = function) -> None:
    equal(results(run, operands(n)), n, reference)


def matched() -> int:
    return torch._dynamo.utils.counters["gdpa"]["matched"]


def forget() -> None:
    """Nothing is compiled: no model, no direct call, no loop of the CPU kernel."""
    from gdpa_inductor import direct
    from gdpa_inductor.kernels.blocked import block_pass

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    direct._alone.cache_clear()
    block_pass.RUNNERS.clear()
    block_pass._variant.cache_clear()


def both(n: int = 32, fused: bool = True) -> None:
    """A model and a direct call, both compiled anew, are right and fused."""
    forget()
    check(compiled(), n)
    check(direct, n)
    require(matched() == (2 if fused else 0), f"{matched()} regions")


def surroundings() -> dict[str, object]:
    """What a compile changes and has to put back."""
    return {
        **state(),
        "functorch": str(sorted(torch._functorch.config.get_config_copy().items(), key=str)),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "threads": torch.get_num_threads(),
        "modes": len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
        "functions": torch._C._len_torch_function_stack(),
        "key of caches": torch.compiler.config.cache_key_tag,
        "interrupts": str(signal.getsignal(signal.SIGINT)),
    }


def empty_caches() -> None:
    """All caches are in the folder `caches`, which is empty."""
    from torch._inductor.utils import clear_caches

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path("caches").absolute())
    os.mkdir("caches")
    clear_caches()
    forget()


def obey_modes() -> None:
    """Root, too, may not do what the modes of files forbid."""
    if os.geteuid() != 0:
        return
    libc, overrides = ctypes.CDLL(None), (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    for number in overrides:
        libc.prctl(24, number, 0, 0, 0)  # PR_CAPBSET_DROP: of programs that are started, too
    header, capabilities = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, capabilities)
    for place in range(3):
        capabilities[place] &= ~sum(1 << number for number in overrides)
    require(libc.capset(header, capabilities) == 0, "capabilities cannot be given up")


def forbid_writing(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode & 0o555)


def attempt(run: Callable[[], None]) -> str:
    """What is wrong: an exception, state that is left, a warning."""
    # After a fork the first call makes torch's pool anew. Autograd's threads would race for that.
    torch.set_num_threads(1)
    before = surroundings()
    try:
        run()
        left = [name for name, value in surroundings().items() if before[name] != value]
        require(not left, f"left behind: {left}")
        require(not WARNINGS.seen, f"warnings: {WARNINGS.seen}")
    except BaseException:
        return traceback.format_exc()[-3000:]
    return ""
