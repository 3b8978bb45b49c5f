"""`python -m gdpa_inductor TOOL [arguments]`: doctor, demo or bench; each has its own --help."""

import importlib
import sys

TOOLS = {
    "doctor": ("gdpa_inductor.doctor", "what is installed, which kernels can run, a self-test"),
    "demo": ("gdpa_inductor.demo.__main__", "a recommender on real data under three compilers"),
    "bench": ("gdpa_inductor.bench.__main__", "times and memory against eager, Inductor, softmax"),
}


def main(argv: list[str]) -> int:
    """Hands the remaining arguments to the tool; its status is ours."""
    if not argv or argv[0] not in TOOLS:
        print(__doc__.strip())
        for name, (_, purpose) in TOOLS.items():
            print(f"  {name:8}{purpose}")
        return 0 if argv in (["-h"], ["--help"]) else 2
    module = importlib.import_module(TOOLS[argv[0]][0])
    return int(module.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
