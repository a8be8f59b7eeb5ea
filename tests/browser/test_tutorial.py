"""The pictures of docs/start/tutorial.md, taken where the page shows them by a newcomer who follows it.

They go into the folder that JOBRUNNER_IMAGES names, else into a temporary one: nothing here can become wrong unseen.
"""

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.acceptance.compose_processes import Deployment
from tests.acceptance.newcomer import ROOT, Newcomer, blocks, with_commands

PAGE = (ROOT / "docs" / "start" / "tutorial.md").read_text("utf-8")
SKIPPED = r"\bvenv\b|^pip install|docker compose|git clone"
LARGEST = 150_000
PICTURES = {  # name: the page of the dashboard, and what it shows when it is ready
    "queue": ("/queues/mail", "send_welcome"),
    "dead": ("/tasks/bob-1?queue=mail", "Attempt 3 failed"),
    "periodic": ("/periodic", "every minute"),
    "workers": ("/workers", "3 processes"),
}
_AS_THE_READER = """([[root, home, where]]) => {
  document.querySelector('.where').textContent = where;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode())
    walk.currentNode.data = walk.currentNode.data.replaceAll(root, '.venv/lib/python3.13/site-packages')
      .replaceAll(home, '~');
}"""
"""Paths on a picture are those of a reader, not of a test."""


@pytest.mark.timeout(300)
def test_the_pictures_of_the_tutorial(look: Any, tmp_path: Path) -> None:
    images = Path(os.environ.get("JOBRUNNER_IMAGES") or tmp_path / "images")
    images.mkdir(parents=True, exist_ok=True)
    (tmp_path / "jobrunner").symlink_to(ROOT)
    environment = with_commands(tmp_path)
    newcomer, tab = Newcomer(tmp_path, environment, SKIPPED), look(size="small-desk")
    deployed = None
    parts = re.split(r"!\[[^\]]*\]\(\.\./images/tutorial-(\w+)\.png\)", PAGE)
    assert parts[1::2] == [*PICTURES]
    try:
        for text, name in zip(parts[::2], parts[1::2], strict=False):
            for block in blocks(text):
                newcomer.follow(block)
            root = newcomer.link.partition("/login")[0]
            if name == "queue":
                newcomer.type(f"jobrunner dashboard --link --port {urlsplit(root).port}")
                tab.goto(re.findall(r"http://\S+", newcomer.printed)[-1])
            if name == "workers":
                deployed = Deployment(newcomer.folder, {**environment, "HOME": str(tmp_path)})
                deployed.up()
                root = deployed.dashboard
                tab.goto(f"{root}/login")
                tab.fill("input[type=password]", deployed.variables["DASHBOARD_TOKEN"])
                tab.press("input[type=password]", "Enter")
                tab.wait_for_selector("#live-sign", state="attached")
            page, ready = PICTURES[name]
            tab.goto(root + page)
            tab.get_by_text(ready).first.wait_for()
            tab.wait_for_selector("#live-sign[data-state=live]", state="attached")
            where = "~/shop/.jobrunner" if deployed is None else "redis://server:6379/0 · shop"
            tab.evaluate(_AS_THE_READER, [[str(ROOT), str(tmp_path), where]])
            tab.screenshot(path=images / f"tutorial-{name}.png")
            assert 10_000 < (images / f"tutorial-{name}.png").stat().st_size <= LARGEST
    finally:
        tab.close()  # before its server ends
        newcomer.close()
        if deployed is not None:
            deployed.down()
