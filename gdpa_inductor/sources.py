"""A hash of this package's sources: an upgrade must not find what an older version has cached."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path


@functools.cache
def source_hash() -> str:
    """Equal for equal sources, whatever the version number says."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".jinja")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return f"gdpa-{digest.hexdigest()[:16]}"
