"""Writes files atomically: whole or not at all, which makes a job that runs twice harmless."""

import json
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, text: str) -> None:
    """Puts `text` at `path` in one step, replacing what is there; makes the folder if need be.

    A process that is killed in the middle leaves the old file or none, and a stray ``.part`` file next to it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, content: object) -> None:
    """Like `write_whole`, for what JSON can say."""
    write_whole(path, json.dumps(content, indent=1))
