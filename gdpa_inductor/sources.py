"""A hash of this package's sources, so that a new version does not use caches of an old one."""

from __future__ import annotations

import functools
import hashlib
import os

_ROOT = os.path.dirname(__file__)


@functools.cache
def source_hash() -> str:
    """Equal for equal sources, whatever the version number says."""
    digest = hashlib.sha256()
    for folder, inner, names in os.walk(_ROOT):  # pathlib takes three times as long
        inner.sort()
        for name in sorted(names):
            if name.endswith((".py", ".jinja")):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    digest.update(path[len(_ROOT) :].encode() + b"\0" + file.read())
    return f"gdpa-{digest.hexdigest()[:16]}"
