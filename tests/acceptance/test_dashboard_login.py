"""Without configuration the dashboard's link is the only way in, also from this machine and through a proxy."""

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from jobrunner import Client
from jobrunner.client.client import keys_of
from tests.acceptance.dashboard_process import Person, Running, running
from tests.support.ports import free_port
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

JSON = {"accept": "application/json"}


@pytest.fixture
def site(server: Server, keys: Any) -> Iterator[Client]:
    with Client(server.url, keys.prefix) as client:
        client.queue("mail").push({"iban": "DE00"})
        yield client


@pytest.fixture
def dashboard(server: Server, site: Client, tmp_path: Path) -> Iterator[Running]:
    with running(server.url, tmp_path, "--prefix", keys_of(site).prefix) as found:
        yield found


@contextmanager
def relayed(port: int) -> Iterator[str]:
    """A plain TCP relay in front, as socat, ssh -R, kubectl port-forward and a published port of a container are."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@contextmanager
def behind_nginx(port: int, folder: Path) -> Iterator[str]:
    """nginx with nothing but `proxy_pass`."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if nginx is None:
        pytest.skip("there is no nginx on this machine")
    front = free_port()
    settings = folder / "nginx.conf"
    settings.write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;\n"
        f"fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;\n"
        f"server {{ listen 127.0.0.1:{front}; location / {{ proxy_pass http://127.0.0.1:{port}; }} }} }}\n"
    )
    process = subprocess.Popen([nginx, "-c", str(settings)], stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", front), 1):
            return True
        return False

    try:
        wait_for(answers, timeout_s=20)
        yield f"http://127.0.0.1:{front}/"
    finally:
        process.terminate()
        process.wait(30)


def ways_in(kind: str, dashboard: Running, folder: Path) -> Any:
    if kind == "nginx":
        return behind_nginx(dashboard.port, folder)
    return relayed(dashboard.port)


@pytest.mark.parametrize("kind", ["a TCP relay", "nginx"])
def test_a_proxy_with_default_settings_lets_nobody_in(
    dashboard: Running, site: Client, tmp_path: Path, kind: str
) -> None:
    with ways_in(kind, dashboard, tmp_path) as front:
        stranger = Person()
        for host in ({}, {"host": "jobs.bank.example"}, {"host": "127.0.0.1"}):
            assert stranger.get(front, **JSON, **host)[0] == 401
            assert stranger.get(f"{front}tasks", **JSON, **host)[0] == 401
            assert stranger.post(f"{front}queues/mail/pause", sec_fetch_site="same-origin", **JSON, **host)[0] in (
                401,
                403,
            )
        assert not site.queue("mail").is_paused()

        link = dashboard.printed["login_url"].replace(dashboard.url, front)
        owner = Person()
        assert owner.get(link)[0] == 200
        assert owner.get(front, **JSON)[0] == 200
        status, page = owner.get(f"{front}queues/mail")
        token = re.search(r'name="csrf" value="(\w+)"', page)
        assert status == 200
        assert token is not None
        form = f"csrf={token[1]}".encode()
        assert owner.post(f"{front}queues/mail/pause", form, sec_fetch_site="same-origin", **JSON)[0] == 200
        assert site.queue("mail").is_paused()
        assert stranger.get(link)[0] == 403, "a link is of use once"
        assert stranger.get(front, **JSON)[0] == 401


def test_a_second_command_prints_another_link(dashboard: Running, tmp_path: Path) -> None:
    def one_more(*words: str, folder: Path = tmp_path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "jobrunner", "dashboard", "--link", "--port", str(dashboard.port), *words],
            capture_output=True, text=True, timeout=30, cwd=folder, env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        )  # fmt: skip

    for link in (one_more().stdout.strip(), json.loads(one_more("--json").stdout)["login_url"]):
        person = Person()
        assert person.get(link)[0] == 200
        assert person.get(dashboard.url, **JSON)[0] == 200
    other = tmp_path / "other user"
    other.mkdir()
    refused = one_more(folder=other)
    assert (refused.returncode, "runs no dashboard" in refused.stderr) == (2, True)


def test_what_is_left_for_the_owner_is_private_and_goes_with_the_process(dashboard: Running, tmp_path: Path) -> None:
    folder = tmp_path / "jobrunner"
    files = sorted(folder.iterdir())

    assert [one.name for one in files] == [f"dashboard-{dashboard.port}.json", f"open-{dashboard.port}.html"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in files} == {0o600}
    dashboard.process.send_signal(2)
    dashboard.process.wait(20)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("wrong", ["a link", "open to others"])
def test_a_folder_that_is_not_the_owners_alone_gets_no_secret(server: Server, tmp_path: Path, wrong: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder = tmp_path / "jobrunner"
    folder.symlink_to(elsewhere) if wrong == "a link" else folder.mkdir()
    if wrong != "a link":
        folder.chmod(0o777)

    with running(server.url, tmp_path) as dashboard:
        assert list(folder.iterdir()) == []
        assert Person().get(dashboard.printed["login_url"])[0] == 200


def test_a_link_is_neither_in_logs_nor_in_ps(dashboard: Running) -> None:
    link = dashboard.printed["login_url"]
    secret = link.partition("token=")[2]
    person = Person()
    assert len(secret) == 43
    assert person.get(link)[0] == 200
    assert person.get(link + "x")[0] == 200, "a browser with a session is redirected to the pages"
    assert Person().get(link)[0] == 403

    arguments = Path(f"/proc/{dashboard.process.pid}/cmdline").read_bytes()
    assert secret.encode() not in arguments
    assert secret not in dashboard.errors.read_text()


def test_logins_refusals_and_actions_are_json_lines_on_stderr(dashboard: Running) -> None:
    person = Person()
    person.get(dashboard.printed["login_url"])
    Person().get(f"{dashboard.url}login?token=wrong")
    person.post(f"{dashboard.url}queues/mail%0d%1b[2Jforged/pause", b"csrf=wrong", sec_fetch_site="same-origin", **JSON)

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in dashboard.errors.read_text().splitlines()]

    wait_for(lambda: len(lines()) >= 3)
    told = [(one["logger"], one["action"], one["who"], one["address"]) for one in lines()]
    assert told == [("jobrunner.audit", "login", "local", "127.0.0.1"),
                    ("jobrunner.audit", "login.failed", "login", "127.0.0.1"),
                    ("jobrunner.audit", "refused", "local", "127.0.0.1")]  # fmt: skip
    assert lines()[2]["what"] == "POST /queues/mail\\r\\x1b[2Jforged/pause"


def test_no_login_is_said_and_is_for_this_machine_only(server: Server, tmp_path: Path) -> None:
    with running(server.url, tmp_path, "--no-login") as dashboard:
        assert Person().get(dashboard.url, **JSON)[0] == 200
        assert Person().get(dashboard.url, host="jobs.example", **JSON)[0] == 401
        assert "login_url" not in dashboard.printed
        assert "every user of this machine" in dashboard.errors.read_text()


def test_open_leads_the_browser_by_a_private_page(server: Server, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {opened}.new\nmv {opened}.new {opened}\n')
    browser.chmod(0o755)

    with running(server.url, tmp_path, "--open", env={"BROWSER": f"{browser} %s"}) as dashboard:
        wait_for(opened.exists, timeout_s=20)
        page = Path(opened.read_text().strip().removeprefix("file://"))
        assert "token" not in opened.read_text()
        assert dashboard.printed["login_url"] in page.read_text()


def test_a_hash_is_printed_that_lets_in(server: Server, tmp_path: Path) -> None:
    known = subprocess.run(
        [sys.executable, "-m", "jobrunner", "dashboard", "--hash"], input="correct horse\n", capture_output=True,
        text=True, timeout=30, cwd=tmp_path,
    ).stdout.strip()  # fmt: skip

    assert known.startswith("scrypt$")
    with running(server.url, tmp_path, env={"JOBRUNNER_DASHBOARD_USER_TOKEN": f"ann:{known}:viewer"}) as dashboard:
        assert Person().get(dashboard.url, authorization="Bearer correct horse", **JSON)[0] == 200
        assert Person().get(dashboard.url, authorization=f"Bearer {known}", **JSON)[0] == 401
