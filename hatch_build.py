"""README for package indexes, where a link to a file of the repository leads nowhere.

Relative links become their text, and pictures of the repository are left out.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n", re.M)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)[^)]*\)")
COMMENT = re.compile(r"^<!--.*?-->\n\n?", re.M)


def for_index(text: str) -> str:
    return LINK.sub(r"\1", PICTURE.sub("", COMMENT.sub("", text)))


class Readme(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text)}
