"""Browsers that ask the dashboard, with and without the right to."""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobrunner.client.client import Client
from jobrunner.web.access import BROWSER_COOKIE, form_token
from jobrunner.web.app import create_app
from jobrunner.web.auth import Loopback


class Browser(TestClient):
    """Asks like a browser on this machine; `post_form` like a form of a page that is open in it."""

    def __init__(self, app: Any, *, name: str = "local", root: str = "", **options: Any) -> None:
        options = {"base_url": "http://127.0.0.1", "client": ("127.0.0.1", 50000), "follow_redirects": False} | options
        super().__init__(app, **options)
        self.headers["accept"] = "text/html"
        self._name, self._root = name, root
        self.dashboard = getattr(getattr(app, "state", None), "dashboard", None)

    def token(self, dashboard: Any) -> str:
        """The token that a form of a page open here has."""
        if BROWSER_COOKIE not in self.cookies:
            self.get(f"{self._root}/no-such-page")
        return form_token(dashboard.access.key, self.cookies[BROWSER_COOKIE], self._name)

    def post_form(self, path: str, fields: dict[str, Any] | None = None, **options: Any) -> Any:
        """Sends a form as a browser does."""
        shared = options.pop("dashboard", None) or self.dashboard
        headers = {"sec-fetch-site": "same-origin"} | options.pop("headers", {})
        return self.post(path, data={"csrf": self.token(shared), **(fields or {})}, headers=headers, **options)


@pytest.fixture
def browse(client: Client) -> Callable[..., Browser]:
    """browse(auth=…, name="ann"): a browser for a dashboard of the test's client."""

    def browse(*, name: str = "local", headers: Any = None, peer: str = "127.0.0.1", **options: Any) -> Browser:
        host = options.pop("host", "127.0.0.1")
        app = create_app(client, **{"auth": Loopback(), **options})
        return Browser(app, name=name, headers=headers, client=(peer, 50000), base_url=f"http://{host}")

    return browse
