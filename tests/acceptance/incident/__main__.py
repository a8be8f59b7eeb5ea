"""Rehearses an incident: ``python -m tests.acceptance.incident --pictures FOLDER``.

100 000 tasks on a private server, real workers; one job fails since a release, one task ends its workers, one queue has
no worker, one limit is too low. A browser finds each from the overview within three clicks, a terminal within two
commands. Exit code: 0 all found and all pages can be read by everybody, 1 something was not, 2 misuse.
"""

import argparse
import shutil
import socket
import sys
import tempfile
import threading
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright

from jobrunner.web.app import create_app
from jobrunner.web.auth import Loopback
from tests.acceptance.incident.rehearsal import failures, picture, rehearse
from tests.acceptance.incident.scene import incident
from tests.support.waiting import wait_for


def main() -> int:
    """Plays it."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.incident", description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000, help="in all queues (default 100000)")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="a picture of every page, in order")
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="the pictures of docs/incidents.md")
    given = parser.parse_args()
    wrong: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="jr-") as folder,
        incident(given.tasks, Path(folder)) as played,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(create_app(played.client, auth=Loopback()), lifespan="off", log_level="warning")
        server = uvicorn.Server(config)
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        serving.start()
        wait_for(lambda: server.started)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if given.docs:
            picture(browser, url, given.docs)
        for found in rehearse(played, browser, url, given.pictures):
            print(f"{found.trouble}, by {found.way}: {' · '.join(found.steps)}")
            wrong += failures(found)
        browser.close()
        server.should_exit = True
        serving.join(30)
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
