"""The part of docs/versions.md that says what ran on which torch: .ci/matrix.jsonl.

python -m docs.tools.versions          renews the page
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.matrix import Row, rows

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "versions.md"
RECORDS = ROOT / ".ci" / "matrix.jsonl"
_PART = re.compile(r"(<!-- matrix -->\n).*?(<!-- end of matrix -->)", re.DOTALL)


def latest() -> dict[str, list[dict]]:
    """By version of torch, the last record of each run."""
    records_of: dict[str, dict[str, dict]] = {row.torch: {} for row in rows()}
    for text in RECORDS.read_text().splitlines():
        record = json.loads(text)
        records_of.setdefault(record["torch"], {})[record["shows"]] = record
    return {version: list(records.values()) for version, records in records_of.items()}


def line(row: Row, records: list[dict]) -> str:
    fbgemm = "none" if row.fbgemm == "-" else row.fbgemm
    if not records:
        return f"| {row.torch} | {row.triton} | {fbgemm} | | no run is recorded | |"
    shown = "; ".join(f"{one['shows']} ({one['passed']:,})" for one in records)
    python, date = records[-1]["python"], max(one["date"] for one in records)
    return f"| {row.torch} | {row.triton} | {fbgemm} | {python} | {shown} | {date} |"


def table() -> str:
    records_of = latest()
    head = (
        "| torch | Triton | fbgemm | Python | what passed (tests) | on |\n|---|---|---|---|---|---|"
    )
    return "\n".join([head, *(line(row, records_of[row.torch]) for row in rows())])


def renewed(page: str) -> str:
    return _PART.sub(lambda match: f"{match[1]}\n{table()}\n\n{match[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
