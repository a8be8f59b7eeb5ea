"""The dashboard below a path: of FastAPI, of Starlette, of Django, and behind a proxy."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from fastapi import FastAPI
from jinja2 import Environment
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption
from jobrunner.web.app import asgi_under, create_app
from jobrunner.web.auth import Loopback
from jobrunner.web.settings import checked_prefix
from tests.unit.web.conftest import Browser


def in_fastapi(dashboard: Any) -> Any:
    app = FastAPI()
    app.get("/own")(lambda: "own")
    app.mount("/jobs", dashboard)
    return app


def in_starlette(dashboard: Any) -> Any:
    return Starlette(routes=[Route("/own", lambda _: PlainTextResponse("own")), Mount("/jobs", dashboard)])


def in_django(dashboard: Any) -> Any:
    from django.conf import settings

    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
    import django
    from django.core.asgi import get_asgi_application

    django.setup()
    return asgi_under("/jobs", dashboard, get_asgi_application())


def _own(_: Any) -> Any:
    from django.http import HttpResponse

    return HttpResponse("own")


class _Patterns:
    def __get__(self, *_: Any) -> Any:
        from django.urls import path

        return [path("own", _own)]


def __getattr__(name: str) -> Any:
    if name == "urlpatterns":
        return _Patterns().__get__()
    raise AttributeError(name)


@pytest.mark.parametrize("mount", [in_fastapi, in_starlette, in_django])
def test_pages_actions_and_files_work_below_a_path(mount: Callable[[Any], Any], client: Client) -> None:
    client.queue("mail").push({})
    dashboard = create_app(client, auth=Loopback())
    browser = Browser(mount(dashboard), root="/jobs")

    page = browser.get("/jobs/queues")
    done = browser.post_form("/jobs/queues/mail/pause", dashboard=dashboard.state.dashboard)

    assert page.status_code == 200
    assert 'href="/jobs/queues/mail' in page.text
    assert 'src="/jobs/static/app.js' in page.text
    assert browser.get("/jobs/static/app.js").status_code == 200
    assert (done.status_code, done.headers["location"]) == (303, "/jobs/queues/mail")
    assert client.queue("mail").is_paused()
    assert "own" in browser.get("/own").text


@pytest.mark.parametrize("fails", [False, True])
def test_another_application_beside_the_dashboard_is_started_and_shut_down(client: Client, fails: bool) -> None:
    """The dashboard answered for it: a FastAPI or Litestar there ran without the pools that it opens at its start."""
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        seen.append("started")
        if fails:
            raise RuntimeError("no database")
        yield
        seen.append("ended")

    others = Starlette(routes=[Route("/own", lambda _: PlainTextResponse("own"))], lifespan=lifespan)
    both = asgi_under("/jobs", create_app(client, auth=Loopback()), others)

    with nullcontext() if not fails else pytest.raises(RuntimeError, match="no database"), TestClient(both) as browser:
        assert browser.get("/own").text == "own"
    assert seen == (["started"] if fails else ["started", "ended"])


def test_django_without_a_lifespan_is_served(client: Client) -> None:
    with TestClient(in_django(create_app(client, auth=Loopback()))) as browser:
        assert browser.get("/own").text == "own"


@pytest.mark.parametrize(
    ("mount", "path"),
    [(in_starlette, "/shop/jobs/queues"), (in_django, "/shop/jobs/queues"), (in_django, "/jobs/queues")],
)
def test_a_path_works_below_that_of_the_server(mount: Callable[[Any], Any], client: Client, path: str) -> None:
    """`uvicorn --root-path /shop`, behind a proxy that strips `/shop`: uvicorn puts it in front of the path again, as
    ASGI has it. Other servers may not."""
    app = mount(create_app(client, auth=Loopback()))

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await app(scope if scope["type"] == "lifespan" else {**scope, "root_path": "/shop"}, receive, send)

    browser = Browser(served)
    page = browser.get(path)

    assert page.status_code == 200
    assert 'src="/shop/jobs/static/app.js' in page.text
    assert browser.get(path.replace("jobs/queues", "own")).text == "own"
    assert browser.get(path.replace("jobs/queues", "jobsown")).status_code == 404


@pytest.mark.parametrize("passed_on", ["/jobs/queues", "/queues"])
def test_a_proxy_may_take_the_prefix_off_or_leave_it(client: Client, passed_on: str) -> None:
    client.queue("mail").push({})

    page = Browser(create_app(client, auth=Loopback(), prefix_path="/jobs")).get(passed_on)

    assert page.status_code == 200
    assert 'href="/jobs/queues/mail' in page.text


def test_behind_a_proxy_with_tls_the_redirect_to_the_first_page_leads_to_https(client: Client) -> None:
    """It led from https://h/jobs to http://h/jobs/, where nginx answers 400: plain HTTP sent to an HTTPS port."""
    with TestClient(create_app(client, auth=Loopback(), prefix_path="/jobs"), base_url="http://h:8443") as browser:
        said = browser.get("/jobs", headers={"x-forwarded-proto": "https"}, follow_redirects=False)
        plain = browser.get("/jobs", follow_redirects=False)
    assert (said.status_code, said.headers["location"]) == (307, "https://h:8443/jobs/")
    assert plain.headers["location"] == "http://h:8443/jobs/"


def test_a_prefix_may_be_the_name_of_a_page_where_the_proxy_keeps_it(client: Client) -> None:
    browser = Browser(create_app(client, auth=Loopback(), prefix_path="/tasks"))

    assert "<title>Tasks" in browser.get("/tasks/tasks").text
    assert "<title>Overview" in browser.get("/tasks/").text


def test_a_prefix_is_a_path() -> None:
    assert [checked_prefix(one) for one in ("", "/", "jobs/", "/a/b-c")] == ["", "", "/jobs", "/a/b-c"]
    for wrong in ("/a b", "/<x>", "/a//b", "/\n"):
        with pytest.raises(InvalidOption):
            checked_prefix(wrong)


def test_a_second_dashboard_compiles_no_template_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Browser(create_app(client, auth=Loopback())).get("/queues").status_code == 200
    monkeypatch.setattr(Environment, "compile", lambda *_, **__: pytest.fail("a template is compiled again"))
    assert Browser(create_app(client, auth=Loopback())).get("/queues").status_code == 200
