"""`gdpa TOOL [arguments]`: doctor, demo or bench; each has its own --help. So does
`python -m gdpa_inductor TOOL`.
"""

import difflib
import importlib
import sys
from collections.abc import Sequence

from . import __version__
from .terminal import write_readably

TOOLS = {
    "doctor": ("gdpa_inductor.doctor", "what is installed, which kernels can run, a self-test"),
    "demo": ("gdpa_inductor.demo.__main__", "a recommender on real data under three compilers"),
    "bench": ("gdpa_inductor.bench.__main__", "times and memory against eager, Inductor, softmax"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Hands the remaining arguments to the tool; its status is ours."""
    argv = sys.argv[1:] if argv is None else list(argv)
    write_readably()
    if argv and argv[0] in TOOLS:
        return int(importlib.import_module(TOOLS[argv[0]][0]).main(argv[1:]))
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


if __name__ == "__main__":
    sys.exit(main())
