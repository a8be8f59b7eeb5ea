"""Rendering of pages: templates for browsers, JSON for programs."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from jobrunner.web.filters import FILTERS

TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"


def environment() -> Environment:
    """The templates of this package."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    made.filters.update(FILTERS)
    return made


def as_json(values: Mapping[str, Any]) -> bytes:
    """The values of a page or an action for a program."""
    return msgspec.json.encode(values, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def version_of(folder: Path) -> Callable[[str], str]:
    """A function from the name of a static file to `name?v=…`, which changes with the file."""

    def versioned(name: str) -> str:
        path = folder / name
        return f"{name}?v={path.stat().st_mtime_ns:x}" if path.is_file() else name

    return versioned
