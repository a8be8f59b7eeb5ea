"""Makes the pictures of the documentation, into the folder that the environment variable JOBRUNNER_IMAGES names.

Without the variable they are made into a temporary folder, so that nothing here can become wrong unseen.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import redis

LARGEST = 220_000
PICTURES = {
    "overview": ("/", "picture", "light"),
    "overview-dark": ("/", "picture", "dark"),
    "queue": ("/queues/mail", "picture", "light"),
    "dead": ("/dead", "picture", "light"),
    "queues": ("/queues", "picture", "light"),
    "pipeline": ("/pipelines/orders", "picture", "dark"),
    "phone": ("/queues", "phone", "light"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_for_the_documentation(shop: Any, look: Any, tmp_path: Path, name: str) -> None:
    path, size, theme = PICTURES[name]
    target = Path(os.environ.get("JOBRUNNER_IMAGES") or tmp_path) / f"dashboard-{name}.png"
    redis.Redis.from_url(shop.server.url).config_set("appendonly", "yes")  # no warning of the tests' own server
    tab = look(size=size, theme=theme)

    tab.goto(shop.url + path)
    tab.wait_for_selector("#live-sign[data-state=live]", state="attached")
    tab.evaluate("document.querySelector('.where').textContent = 'redis://redis:6379/0 · shop'")
    target.parent.mkdir(parents=True, exist_ok=True)
    tab.screenshot(path=target)

    assert 10_000 < target.stat().st_size <= LARGEST
