"""`python -m tests.timing`: the tables of the timing model. `--write` puts them into the pages.

`--counts` counts the instructions of our kernels anew, which needs CuTe DSL and no GPU.
"""

import argparse
from pathlib import Path

from . import subjects, tables

ROOT = Path(__file__).parents[2]
PREDICTIONS = ROOT / "gdpa_inductor" / "proving" / "predictions.json"
TABLES = {
    ("timing_model.md", "hopper times"): tables.hopper_table,
    ("timing_model.md", "published times"): tables.published_table,
    ("blackwell.md", "predicted times"): tables.prediction_table,
}


def put(page: Path, name: str, lines: str) -> None:
    """Between the marks of that name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + lines + "\n" + end + rest.split(end)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--counts", action="store_true")
    arguments = parser.parse_args()
    if arguments.counts:
        subjects.write()
    for (page, name), make in TABLES.items():
        lines = make()
        print(f"{name}\n\n{lines}\n", flush=True)
        if arguments.write:
            put(ROOT / "docs" / page, name, lines)
    if arguments.write:
        PREDICTIONS.write_text(tables.prediction_file())


if __name__ == "__main__":
    main()
