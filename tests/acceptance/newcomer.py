"""A newcomer who follows a page: writes its files and types its commands, in a folder of their own.

Blocks of a page are taken in their order. A file names itself in its first line (``# tasks.py``, or ``# append to …``);
commands are in ``sh`` blocks, and a ``text`` block holds parts of what the last commands print. Commands that run until
they are stopped (`jobrunner work`, `jobrunner dashboard`) go on in terminals of their own.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
UNSET = ("JOBRUNNER_URL", "REDIS_URL", "JOBRUNNER_PREFIX", "JOBRUNNER_RELEASE", "PYTEST_ADDOPTS", "VIRTUAL_ENV")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ENDLESS = re.compile(r"^jobrunner (work|dashboard)\b(?!.*--link)")
_REPEATABLE = re.compile(r"^jobrunner (status|dead list|tasks show|periodic list)\b")
_PATIENCE_S = 90.0


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and the words of the page before it."""

    language: str
    text: str
    words_before: int

    @property
    def file(self) -> str:
        """The path of the file that the block names; empty for commands and output."""
        found = re.match(r"# (?:append to )?([\w./-]+)", self.text)
        return found[1] if found and self.language in ("python", "toml", "dockerfile") else ""


def blocks(text: str) -> list[Block]:
    """The blocks of a page, or of a part of it, in order."""
    found, at = [], 0
    for block in _BLOCK.finditer(text):
        found.append(Block(block[1], block[2], len(text[at : block.start()].split())))
        at = block.end()
    return found


@dataclass
class Newcomer:
    """A reader with a home folder and a shell. Lines that `skipped` matches are not typed."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    skipped: str = r"^$"

    def __post_init__(self) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in UNSET and not name.startswith("COV_")}
        self._environment = {**kept, "HOME": str(self.home), "COLUMNS": "160", **self.environment}
        self.folder, self.printed, self.link = self.home, "", ""
        self.terminals: dict[str, subprocess.Popen[str]] = {}
        self._last = ""
        self._browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def follow(self, block: Block) -> None:
        """Writes the file, types the commands, or compares what they printed. Raises AssertionError."""
        if block.file:
            self.write(block)
        elif block.language == "sh":
            self.printed = ""
            for line in block.text.splitlines():
                if line.strip() and not re.search(self.skipped, line):
                    self.type(line)
        elif block.language == "text":
            self._compare(block.text)

    def write(self, block: Block) -> None:
        """Writes, or appends to, the file of a block, without the line that names it when that is no comment of it."""
        path = self.folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        if block.text.startswith("# append to"):
            path.write_text(path.read_text("utf-8") + block.text.partition("\n")[2], "utf-8")
        else:
            path.write_text(block.text, "utf-8")

    def type(self, line: str) -> None:
        """Types a line into the shell; the folder and the variables that it leaves are those of the next line."""
        command = line.partition("  #")[0].strip()
        if _ENDLESS.match(command):
            self.start(command)
            return
        left = self.home / ".left"
        script = f"{command}\nstatus=$?\npwd > '{left}'\nenv -0 >> '{left}'\nexit $status"
        done = self._shell(script)
        if done.returncode and _REPEATABLE.match(command):  # the worker may be restarting, and its server with it
            done = wait_for(lambda: next((one for one in [self._shell(script)] if not one.returncode), None),
                            timeout_s=_PATIENCE_S)  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        folder, _, variables = left.read_text("utf-8").partition("\n")
        self.folder = Path(folder)
        self._environment = dict(one.split("=", 1) for one in variables.split("\0") if "=" in one)
        self.printed += done.stdout
        self._last = command

    def start(self, command: str) -> None:
        """Starts a command that runs until it is stopped, and waits for its first words: a worker that has started, the
        link of a dashboard, which takes a free port."""
        is_dashboard = command.startswith("jobrunner dashboard")
        words = f"{command} --port 0" if is_dashboard and "--port" not in command else command
        path = self.home / f"{len(self.terminals)}.log"
        with path.open("w") as log:
            self.terminals[command] = subprocess.Popen(
                ["bash", "-c", f"exec {words}"],
                cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True,
            )  # fmt: skip
        first = r"http://\S+" if is_dashboard else "worker started"
        found = wait_for(
            lambda: re.search(first, path.read_text("utf-8")) or self.terminals[command].poll() is not None,
            timeout_s=_PATIENCE_S,
        )
        assert isinstance(found, re.Match), f"$ {command}\n{path.read_text('utf-8')}"
        if is_dashboard:
            self.link = found[0]
            self.open_page(self.link)

    def open_page(self, url: str) -> str:
        """What a browser shows for a URL of the dashboard, with the cookie of earlier pages."""
        with self._browser.open(url, timeout=30) as reply:
            return str(reply.read().decode())

    def close(self) -> None:
        """Presses Ctrl-C in every terminal."""
        for process in self.terminals.values():
            process.send_signal(signal.SIGINT)
        for process in self.terminals.values():
            try:
                process.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def _shell(self, script: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip

    def _compare(self, promised: str) -> None:
        """Each line is part of what was printed; a command that only reads is typed again until it is, as people do."""
        until = time.monotonic() + _PATIENCE_S
        while missing := [line for line in promised.splitlines() if line.strip() not in self.printed]:
            is_over = time.monotonic() > until or not _REPEATABLE.match(self._last)
            assert not is_over, f"$ {self._last}\n{self.printed}\nlacks {missing}"
            time.sleep(0.1)
            self.printed = self._shell(self._last).stdout


def with_commands(home: Path) -> dict[str, str]:
    """An environment in which `jobrunner` and `python` are those of this process, as in an activated environment."""
    folder = home / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in (("jobrunner", "-m jobrunner"), ("python", "")):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
