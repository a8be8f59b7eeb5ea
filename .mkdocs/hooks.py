"""Hooks of mkdocs: add the style sheet, place pages without a place, rewrite links out of docs/."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

_HOW_TO, _INSIDE = "How-to", "How it works"
_HIDDEN = {"compare.md": ["navigation", "toc"], "index.md": ["navigation"]}
"""Columns at the sides that a page does without: for a table that needs the width, or as they would be empty."""


def on_config(config: Any) -> Any:
    """Adds to how-to every page that is nowhere, and decisions to how it works."""
    config.nav = [*config.nav]
    docs = Path(config.docs_dir)
    placed = set(re.findall(r"[\w/.-]+\.md", str(config.nav)))
    rest = sorted({str(page.relative_to(docs)) for page in docs.rglob("*.md")} - placed)
    decisions = [page for page in rest if page.startswith("decisions/")]
    for section in config.nav:
        if _HOW_TO in section:
            section[_HOW_TO] = [*section[_HOW_TO], *(page for page in rest if page not in decisions)]
        if _INSIDE in section:
            section[_INSIDE] = [*section[_INSIDE], *decisions]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the style sheet."""
    style = (Path(__file__).parent / "site.css").read_text("utf-8")
    files.append(File.generated(config, "assets/site.css", content=style))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files outside docs/ become their paths; some pages have no columns at the sides."""
    page.meta.setdefault("hide", _HIDDEN.get(page.file.src_uri, []))
    return outside_links(markdown, page.file.src_uri)


def outside_links(markdown: str, source: str) -> str:
    """The text with links that leave docs/ as paths in the checkout: the repository has no public address yet."""
    depth = source.count("/")

    def mended(found: re.Match[str]) -> str:
        text, up, path = found[1], found[2].count("../"), found[3]
        if up <= depth:
            return found[0]
        return text if path in text else f"{text} (`{path}` in the repository)"

    return re.sub(r"\[([^\]]*)\]\(((?:\.\./)+)([^)]*)\)", mended, markdown)
