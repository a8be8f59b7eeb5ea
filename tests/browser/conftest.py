"""A real dashboard, and a browser that opens it: the system's Chromium, driven by Playwright."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from jobrunner import Client
from jobrunner.client.current import forget, use
from tests.support.server import Server
from tests.support.waiting import wait_for

SIZES = {"phone": (360, 740), "desk": (1440, 900)}
PICTURE = (1280, 800)
SMALL_DESK = (1024, 768)
THEMES = ("light", "dark")
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests in this folder need a browser, and take turns with it."""
    for item in items:
        if item.path.parent.name == "browser":
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser"))


@dataclass(frozen=True)
class Served:
    """A dashboard on a port of its own."""

    url: str
    client: Client
    server: Server


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser, without a window."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., str]]:
    """serve(app): its URL, until the end of the session."""
    uvicorn = pytest.importorskip("uvicorn")
    running: list[tuple[Any, threading.Thread]] = []

    def serve(app: Any) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running.append((server, thread))
        wait_for(lambda: server.started)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    for server, thread in running:
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def shop(serve: Callable[..., str]) -> Iterator[Served]:
    """The dashboard of a shop (see scene.py) with work of every kind, and a worker at it; one for each module."""
    create_app = pytest.importorskip("jobrunner.web.app").create_app
    from jobrunner.web.auth import Loopback
    from tests.browser import scene

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # what dies here is meant to
    server = Server()
    client = use(Client(server.url, scene.PREFIX))
    scene.write_past(client)
    scene.enqueue(client)
    scene.settle(client)
    scene.leave_some(client)
    workers = scene.begin(client)
    yield Served(serve(create_app(client, auth=Loopback())), client, server)
    scene.gate.set()
    for worker in workers:
        worker.stop(grace=5)
    forget()
    client.close()
    server.remove()
    structlog.reset_defaults()


@pytest.fixture
def look(chromium: Any) -> Iterator[Callable[..., Any]]:
    """look(size="desk", theme="light"): a tab; the test fails when a page logs an error or breaks its own policy.

    With `astray` pages may be missing, of which the browser says so.
    """
    problems: list[str] = []
    contexts: list[Any] = []

    def look(*, size: str = "desk", theme: str = "light", astray: bool = False, **options: Any) -> Any:
        def told(said: Any) -> None:
            if said.type == "error" and not (astray and "404" in said.text):
                problems.append(f"{said.text} {said.location}")

        width, height = {**SIZES, "picture": PICTURE, "small-desk": SMALL_DESK}[size]
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=theme, **options)
        contexts.append(context)
        context.set_default_timeout(15_000)
        tab = context.new_page()
        tab.on("console", told)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        return tab

    yield look
    for context in contexts:
        context.close()
    assert not problems, problems
