"""`gdpa TOOL [arguments]`: doctor, prove, and in a checkout demo and bench; each has a --help. So
does `python -m gdpa_inductor TOOL`.
"""

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .terminal import write_readably

PURPOSES = {
    "doctor": "what is installed, which kernels can run, a self-test",
    "prove": "whether the CuTe kernels are right and fast on this GPU",
    "demo": "a recommender on real data under three compilers",
    "bench": "times and memory against eager, Inductor, softmax",
}
OF_CHECKOUT = {"demo": "examples.movielens.__main__", "bench": "benchmarks.__main__"}
CHECKOUT = Path(__file__).parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Hands the remaining arguments to the tool; its status is ours.

    A tool loads torch after it has read its arguments, so that `--help` answers at once.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    write_readably()
    if argv and argv[0] in PURPOSES:
        own = {"doctor": _doctor, "prove": _prove}
        return own[argv[0]](argv[1:]) if argv[0] in own else _of_checkout(*argv)
    if argv == ["--version"]:
        print(f"gdpa_inductor {__version__}")
        return 0
    if argv and argv[0] not in ("-h", "--help"):
        near = difflib.get_close_matches(argv[0], PURPOSES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f" (there are: {', '.join(PURPOSES)})"
        print(f"gdpa_inductor: there is no tool {argv[0]!r}{hint}", file=sys.stderr)
        return 2
    print(__doc__.strip())
    for name, purpose in PURPOSES.items():
        print(f"  {name:8}{purpose}")
    return 0 if argv else 2


def _doctor(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gdpa_inductor doctor",
        description=f"{PURPOSES['doctor']}; the exit status is 0 if the self-test passed",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, for bug reports")
    arguments = parser.parse_args(argv)

    from .doctor import report

    return report(arguments.json)


def _prove(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gdpa_inductor prove",
        description=f"{PURPOSES['prove']}: runs them in processes of their own, which are ended if "
        "they hang, and writes what was found to a certificate, which gdpa.kernel='auto' follows; "
        "the exit status is 1 if kernels failed, 2 if nothing could be proved",
    )
    parser.add_argument(
        "families", nargs="*", help="forward, backward, biases, tables; all if none"
    )
    parser.add_argument("--device", type=int, default=0, help="the number of the GPU")
    parser.add_argument("--background", action="store_true", help="with low priority")
    arguments = parser.parse_args(argv)

    from . import proving

    if unknown := sorted({*arguments.families} - {*proving.FAMILIES}):
        parser.error(
            f"there is no family {unknown[0]!r} (there are: {', '.join(proving.FAMILIES)})"
        )
    return proving.main(arguments.device, arguments.families, arguments.background)


def _of_checkout(tool: str, *argv: str) -> int:
    """A tool of the checkout that the package lies in."""
    module = OF_CHECKOUT[tool]
    if not CHECKOUT.joinpath(*module.split(".")).with_suffix(".py").exists():
        print(
            f"gdpa_inductor: {tool} is part of the repository, not of what pip installs: "
            "clone it, and run it there",
            file=sys.stderr,
        )
        return 2
    sys.path.insert(0, str(CHECKOUT))
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # of the tool's own processes
    return int(importlib.import_module(module).main([*argv]))


if __name__ == "__main__":
    sys.exit(main())
