"""`gdpa TOOL [arguments]`: doctor, and in a checkout demo and bench; each has its own --help. So
does `python -m gdpa_inductor TOOL`.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .terminal import write_readably

TOOLS = {
    "doctor": ("gdpa_inductor.doctor", "what is installed, which kernels can run, a self-test"),
    "demo": ("examples.movielens.__main__", "a recommender on real data under three compilers"),
    "bench": ("benchmarks.__main__", "times and memory against eager, Inductor, softmax"),
}
CHECKOUT = Path(__file__).parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Hands the remaining arguments to the tool; its status is ours."""
    argv = sys.argv[1:] if argv is None else list(argv)
    write_readably()
    if argv and argv[0] in TOOLS:
        return _run(TOOLS[argv[0]][0], argv)
    if argv == ["--version"]:
        print(f"gdpa_inductor {__version__}")
        return 0
    if argv and argv[0] not in ("-h", "--help"):
        near = difflib.get_close_matches(argv[0], TOOLS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f" (there are: {', '.join(TOOLS)})"
        print(f"gdpa_inductor: there is no tool {argv[0]!r}{hint}", file=sys.stderr)
        return 2
    print(__doc__.strip())
    for name, (_, purpose) in TOOLS.items():
        print(f"  {name:8}{purpose}")
    return 0 if argv else 2


def _run(module: str, argv: Sequence[str]) -> int:
    """A tool of the package, or of the checkout that the package lies in."""
    if not module.startswith("gdpa_inductor."):
        if not CHECKOUT.joinpath(*module.split(".")).with_suffix(".py").exists():
            print(
                f"gdpa_inductor: {argv[0]} is part of the repository, not of what pip installs: "
                "clone it, and run it there",
                file=sys.stderr,
            )
            return 2
        sys.path.insert(0, str(CHECKOUT))
        paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # of the tool's own processes
    return int(importlib.import_module(module).main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
