"""Attacks that were advisories of other dashboards, and the headers of every answer."""

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import jobrunner.web
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.periodic import read_definition
from jobrunner.redaction import HIDDEN
from jobrunner.task import Task
from jobrunner.web.auth import Identity, Role
from jobrunner.web.credentials import Token
from jobrunner.web.pages import all_pages

JSON = {"accept": "application/json"}
NASTY = "\"><script>alert(1)</script>'{{7*7}}<img src=x onerror=alert(1)>"
WEB = Path(jobrunner.web.__file__).parent
PLAIN = [page.path for page in all_pages() if "{" not in page.path]
READ = sorted(
    {
        name
        for path in WEB.rglob("*.py")
        for name in re.findall(r"(?:query|form)\.(?:text|whole|number|choice|flag|all)\(\"(\w+)\"", path.read_text())
    }
)
"""Names of all parameters that some page or action reads."""


def as_role(role: Role) -> Callable[[Any], Identity]:
    return lambda _: Identity(name="ann", role=role)


@pytest.mark.parametrize("path", PLAIN)
@pytest.mark.parametrize("value", ["999999999999", "-1", "NaN", "9" * 1500])
def test_parameters_out_of_all_bounds_cost_nothing(browse: Callable[..., Any], path: str, value: str) -> None:
    """CVE-2022-23837, CVE-2023-37279: an unbounded number of days took a server's memory and time."""
    names = {"days", "limit", "page", "count", *READ}
    answer = browse().get(path, params=dict.fromkeys(names, value), headers=JSON)

    assert {"start", "span", "order", "before"} <= names
    assert answer.status_code in (200, 400), answer.text
    assert len(answer.content) < 200_000


@pytest.mark.parametrize("path", [*PLAIN, "/no-such-page", "/queues/none", "/tasks/none"])
def test_no_filter_is_reflected_as_markup(browse: Callable[..., Any], path: str) -> None:
    """CVE-2023-1892, CVE-2024-32887: the text of a filter came back as a script."""
    text = browse().get(path, params=dict.fromkeys({"type", "error", "id", "param", *READ}, NASTY)).text

    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "'49<img" not in text


def test_what_is_in_a_task_is_never_markup(browse: Callable[..., Any], client: Client) -> None:
    client.enqueue(
        Task(id="a", queue="mail", type="Send", payload=msgspec.json.encode({NASTY: NASTY}), max_attempts=1,
             headers=msgspec.json.encode({"h": NASTY}))
    )  # fmt: skip
    client.queue("mail").reserve()[0].rollback(error=NASTY)

    for path in ("/tasks/a?queue=mail", "/dead", "/tasks", "/", "/queues/mail"):
        text = browse().get(path).text
        assert "<script>alert" not in text, path
        assert "<img src=x" not in text, path


def test_no_role_is_taken_from_the_request(browse: Callable[..., Any], client: Client) -> None:
    """CVE-2026-48592: a user who may only read could edit."""
    client.queue("mail").push({})
    browser = browse(auth=as_role(Role.VIEWER), name="ann")

    answer = browser.post_form("/queues/mail/pause?role=admin", {"role": "admin"}, headers={**JSON, "x-role": "admin"})

    assert answer.status_code == 403
    assert not client.queue("mail").is_paused()


def test_a_schedule_that_would_eat_memory_is_damage(browse: Callable[..., Any], client: Client) -> None:
    """CVE-2026-48593: a range in a schedule was expanded without a bound."""
    tame = {"name": "wild", "queue": "mail", "schedule": {"cron": "0-59 * * * *", "tz": "UTC"},
            "payload": "", "catch_up": "last", "overlap": "skip", "jitter": 0.0}  # fmt: skip
    assert read_definition(msgspec.json.encode(tame)) is not None

    for wild in ("0-4000000000 * * * *", "4000000000 * * * *", "0-59/0 * * * *"):
        raw = msgspec.json.encode({**tame, "schedule": {"cron": wild, "tz": "UTC"}})
        tracemalloc.start()
        assert read_definition(raw) is None, wild
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()
        broker_of(client).run(leader_calls.define_periodics(keys_of(client), {"wild": raw}))
    assert browse().get("/periodic", headers=JSON).json()["jobs"] == []


def test_nothing_in_a_result_or_an_error_is_rebuilt(browse: Callable[..., Any], client: Client, raw: Any) -> None:
    """CVE-2021-23727: an exception that a result named was imported and called."""
    client.queue("mail").configure(history=60)
    client.enqueue(Task(id="a", queue="mail", payload=b"{}"))
    client.queue("mail").reserve()[0].commit()
    evil = b'{"exc_type": "system", "exc_module": "os", "exc_message": ["touch /tmp/owned-by-a-result"]}'
    raw.hset(keys_of(client).queue("mail").task("a"), mapping={"result": evil, "error": evil, "outcome": "succeeded"})

    assert browse().get("/tasks/a?queue=mail").status_code == 200
    assert not Path("/tmp/owned-by-a-result").exists()
    sources = "".join(path.read_text() for path in WEB.rglob("*.py"))
    assert not re.search(r"\b(pickle|eval|exec)\b\(?", sources.replace("execut", ""))


def test_the_policy_allows_no_inline_script_and_each_answer_has_a_nonce_of_its_own(browse: Callable[..., Any]) -> None:
    browser = browse()
    first, second = browser.get("/"), browser.get("/")
    policy = first.headers["content-security-policy"]

    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert policy != second.headers["content-security-policy"]
    (nonce,) = set(re.findall(r"'nonce-([^']+)'", policy))
    assert f'nonce="{nonce}"' in first.text


@pytest.mark.parametrize("path", ["/", "/no-such-page", "/static/app.css", "/health"])
def test_every_answer_carries_the_headers(browse: Callable[..., Any], path: str) -> None:
    headers = browse().get(path).headers

    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-opener-policy"] == "same-origin"


def test_browsers_keep_the_style_and_the_script_by_their_version_and_no_page(browse: Callable[..., Any]) -> None:
    """On a slow line each page waited for 50 kB that the one before had fetched."""
    browser = browse()
    page = browser.get("/")

    def kept(path: str) -> str:
        return str(browser.get(path).headers["cache-control"])

    versioned = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
    assert {kept(path) for path in versioned} == {"public, max-age=31536000, immutable"}
    assert page.headers["cache-control"] == "no-store"
    assert {kept(path) for path in ("/static/app.js", "/static/app.js?v=1", "/static/none.js?v=1")} == {"no-store"}


def test_no_template_has_inline_script_style_or_unescaped_values() -> None:
    for path in (WEB / "templates").glob("*.html"):
        text = path.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), path
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=", text), path
        assert not re.search(r"\|\s*safe\b|autoescape\s+false", text), path


def test_no_page_as_it_is_sent_has_anything_inline(browse: Callable[..., Any], client: Client) -> None:
    queue = client.queue("shop/raw")
    queue.configure(history=60)
    for task_id, outcome in (("d", "dead"), ("f", "done"), ("w", "waits")):
        client.enqueue(Task(id=task_id, queue="shop/raw", type="Send", payload=b'{"a": 1}', max_attempts=1))
        if outcome != "waits":
            (lease,) = queue.reserve()
            lease.commit() if outcome == "done" else lease.rollback(error="broken")
    browser, locked = browse(), browse(auth=Token("long enough"))
    sent = {path: browser.get(path) for path in (*PLAIN, "/queues/shop/raw", "/pipelines/shop", "/no-such-page")}
    sent |= {one: browser.get(f"/tasks/{one}?queue=shop/raw") for one in ("d", "f", "w")}
    sent |= {"login": locked.get("/login"), "no token": locked.post_form("/login", {"token": "wrong one"})}

    for path, answer in sent.items():
        (nonce,) = re.findall(r"script-src 'nonce-([^']+)'", answer.headers["content-security-policy"])
        tags = re.findall(r"<[a-zA-Z][^<>]*>", answer.text)
        assert len(tags) > 10, path
        for tag in tags:
            assert not re.search(r"""\s(?:style|on[a-z]+)\s*=|javascript:""", tag), (path, tag)
            if tag.startswith(("<script", '<link rel="stylesheet"')):
                assert f'nonce="{nonce}"' in tag, (path, tag)
            if tag.startswith("<script"):
                assert " src=" in tag, (path, tag)
        assert "<style" not in answer.text, path


def test_secrets_among_parameters_are_not_shown(browse: Callable[..., Any], client: Client) -> None:
    payload = {"user": "ann", "db_password": "hunter2", "nested": [{"api_key": "hunter3"}], "iban": "DE00 hunter4"}
    client.enqueue(Task(id="a", queue="mail", type="Send", payload=msgspec.json.encode(payload)))
    browser = browse(redact=["iban"])

    for headers in ({}, JSON):
        text = browser.get("/tasks/a?queue=mail", headers=headers).text
        assert "hunter" not in text
    assert HIDDEN in browser.get("/tasks/a?queue=mail").text


def test_a_form_that_is_too_large_or_of_another_kind_is_refused(browse: Callable[..., Any]) -> None:
    browser = browse()
    kinds = (
        (b"x" * 2**21, "application/x-www-form-urlencoded", 413),
        (b"{}", "text/plain", 400),
        (b"[", "application/json", 400),
    )
    for body, kind, status in kinds:
        answer = browser.post("/dead/requeue", content=body, headers={**JSON, "content-type": kind})
        assert answer.status_code == status
    many = "&".join(f"a{n}=1" for n in range(5000)).encode()
    form = {**JSON, "content-type": "application/x-www-form-urlencoded"}
    assert browser.post("/dead/requeue", content=many, headers=form).status_code == 400


def test_what_was_not_foreseen_is_told_to_the_log_and_not_to_who_asks(
    browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    browser = browse()
    monkeypatch.setattr(browser.dashboard.live, "_take", lambda: 1 / 0)

    answer = browser.get("/")

    assert answer.status_code == 500
    assert "ZeroDivision" not in answer.text
    assert "content-security-policy" in answer.headers
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("host", "origin", "advised"),
    [("jobs.test", "http://jobs.test:8080", True), ("jobs.test", "https://jobs.test", True),
     ("[::1]", "http://[::1]:8080", True), ("jobs.test", "http://evil.test", False),
     ("jobs.test", "http://jobs.test.evil.test", False), ("jobs.test", "null", False),
     ("jobs.test", "http://[", False)],
)  # fmt: skip
def test_a_proxy_that_drops_the_port_or_the_scheme_is_named_as_the_cause(
    browse: Callable[..., Any], host: str, origin: str, advised: bool
) -> None:
    """Over plain HTTP browsers send no Sec-Fetch-Site, so each login failed, and the page said only to try again."""
    browser = browse(auth=as_role(Role.ADMIN), name="ann")
    fields = {"csrf": browser.token(browser.dashboard)}

    answer = browser.post("/queues/mail/pause", data=fields, headers={**JSON, "host": host, "origin": origin})

    assert answer.status_code == 403
    assert ("$http_host" in answer.json()["error"]) == advised
