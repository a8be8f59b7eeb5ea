"""`jobrunner dashboard` as a process of its own, as its user sees it."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

_WITH_LIMITS = """
from importlib import import_module
from jobrunner.cli.main import main

for path, seconds in {}.items():
    module, _, name = path.rpartition(".")
    assert hasattr(import_module("jobrunner.web." + module), name)
    setattr(import_module("jobrunner.web." + module), name, seconds)
main()
"""


@dataclass(frozen=True)
class Running:
    """A running dashboard: its process and its output. `errors` is the file of its stderr."""

    url: str
    printed: dict[str, str]
    process: subprocess.Popen[str]
    errors: Path

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return int(self.url.split(":")[2].split("/")[0])


@contextmanager
def running(
    url: str, folder: Path, *words: str, limits_s: Mapping[str, float] | None = None, **options: Any
) -> Iterator[Running]:
    """A dashboard of the server at `url` on a free port, with files of its own in `folder`; stopped at the end.

    `limits_s` replaces constants of modules of jobrunner/web, by "module.NAME": a test need not wait so long.
    """
    errors = folder / "dashboard.stderr"
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), **options.pop("env", {})}
    way = ["-c", _WITH_LIMITS.format(dict(limits_s))] if limits_s else ["-m", "jobrunner"]
    command = [sys.executable, *way, "dashboard", "--url", url, "--port", "0", "--json", *words]
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, cwd=folder, **options
        )
    try:
        assert process.stdout is not None
        printed = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        yield Running(printed["url"], printed, process, errors)
        process.send_signal(signal.SIGINT)
        process.wait(20)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Person:
    """A browser with cookies that follows redirects; `get` and `post` return (status, text)."""

    def __init__(self) -> None:
        self.jar = CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))

    def get(self, url: str, **headers: str) -> tuple[int, str]:
        return self._asked(urllib.request.Request(url, headers=_plain(headers)))

    def post(self, url: str, data: bytes = b"", **headers: str) -> tuple[int, str]:
        return self._asked(urllib.request.Request(url, data=data, method="POST", headers=_plain(headers)))

    def _asked(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with self._opener.open(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def _plain(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
