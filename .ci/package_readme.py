"""The README as the package index shows it: hatchling calls this for the metadata of the wheel.

Links to files of the repository would be dead there, and pictures missing, as the repository has no public address yet:
links become their text, pictures are left out. With an address, make them absolute here instead.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^\[?!\[[^\]]*\]\((?!https?:)[^)]*\)(?:\]\([^)]*\))?\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^\[\]]+)\]\((?!https?:|#)[^)]*\)")


def for_the_index(text: str) -> str:
    """The text without relative links and pictures."""
    return _LINK.sub(r"\1", _PICTURE.sub("", text))


class PackageReadme(MetadataHookInterface):
    """Sets `readme`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling with the metadata of [project]."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_the_index(text)}
