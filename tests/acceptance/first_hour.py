"""The first hour of a new user, timed: ``python -m tests.acceptance.first_hour [--keep]``.

A fresh home folder, a fresh virtual environment and nothing but README and the tutorial: commands and files are read
from these pages, not copied here. Time to read and to type is added at a stated rate. Docker is not needed: services of
the Compose file run as plain processes, and their image is a second environment. Ends with 1 when a limit is missed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.compose_processes import Deployment
from tests.acceptance.newcomer import ROOT, Block, Newcomer, blocks

READS_WORDS_PER_MINUTE = 200
TYPES_WORDS_PER_MINUTE = 40
"""A word typed is five characters; code that a page shows is copied, so it costs reading and a fixed time."""
COPIES_S = 5.0
README = (ROOT / "README.md").read_text("utf-8")
TUTORIAL = (ROOT / "docs" / "start" / "tutorial.md").read_text("utf-8")


@dataclass
class Milestone:
    """What was reached: seconds of the machine and of the reader, and the limit of their sum or of the former."""

    title: str
    machine_s: float
    reader_s: float
    limit_s: float
    only_machine: bool = False

    @property
    def took_s(self) -> float:
        """What the limit is compared with."""
        return self.machine_s if self.only_machine else self.machine_s + self.reader_s


class Hour:
    """The clock of a reader: blocks that are followed, with the time that they take."""

    def __init__(self, home: Path) -> None:
        self.reader = Newcomer(home)
        self.machine_s = self.reader_s = 0.0
        self.milestones: list[Milestone] = []

    def read(self, text: str) -> None:
        """Prose and code are read."""
        self.reader_s += len(text.split()) / READS_WORDS_PER_MINUTE * 60

    def follow(self, block: Block) -> None:
        """A file is copied, commands are typed, and the machine takes the time that it takes."""
        if block.language == "sh":
            typed = sum(len(line.partition("  #")[0]) for line in block.text.splitlines())
            self.reader_s += typed / 5 / TYPES_WORDS_PER_MINUTE * 60
        elif block.file:
            self.reader_s += COPIES_S
        began = time.monotonic()
        self.reader.follow(block)
        self.machine_s += time.monotonic() - began

    def reach(self, title: str, limit_s: float, *, only_machine: bool = False) -> None:
        """A milestone: the time since the beginning of the page."""
        self.milestones.append(Milestone(title, self.machine_s, self.reader_s, limit_s, only_machine))

    def begin(self) -> None:
        """Another page, from the home folder and at zero."""
        self.reader.close()
        self.reader.terminals.clear()
        self.reader.type("cd ~")
        self.machine_s = self.reader_s = 0.0


def first_job(hour: Hour) -> None:
    """README: the light install, the first job, and the dashboard."""
    screen, _, rest = README.partition("## A first job")
    section = rest.partition("\n## ")[0]
    install = next(block for block in blocks(screen) if "venv" in block.text)
    hour.read(screen.partition("<!-- demo -->")[0])
    hour.reader.type("cd ~/jobrunner-checkout")
    hour.follow(install)
    hour.reach("install, light", 20, only_machine=True)

    hour.read(section)
    folder = re.search(r"`(mkdir [^`]+)`", section)
    assert folder, "README names the folder of the first job"
    hour.follow(Block("sh", folder[1], 0))
    files = [block for block in blocks(section) if block.file]
    commands = next(block for block in blocks(section) if block.language == "sh").text.splitlines()
    for block in files:
        hour.follow(block)
    work, app, dashboard = (Block("sh", f"{line}\n", 0) for line in commands)
    hour.follow(work)
    hour.follow(app)
    assert "sent to ada@example.org" in hour.reader.printed, hour.reader.printed
    hour.reach("first job", 180)
    hour.follow(dashboard)
    root = hour.reader.link.partition("/login")[0]
    assert "SendWelcomeEmail" in hour.reader.open_page(f"{root}/queues/mail")
    hour.reach("own job on the dashboard", 300)


def deployed(hour: Hour) -> None:
    """The tutorial, to its end: a project, tests, and the services of the Compose file."""
    hour.begin()
    hour.read(TUTORIAL)
    docker = re.findall(r"^docker compose .+$", TUTORIAL, re.MULTILINE)
    hour.reader.skipped = r"^docker compose"
    for block in blocks(TUTORIAL):
        hour.follow(block)
    assert [line.split()[2] for line in docker] == ["up", "exec", "exec"]
    began = time.monotonic()
    image = image_of(hour)
    running = Deployment(hour.reader.folder, {"PATH": f"{image}/bin:/usr/bin:/bin", "HOME": str(hour.reader.home)})
    try:
        running.up()
        for line in docker[1:]:
            words = line.split()[4:]
            subprocess.run(words, cwd=hour.reader.folder, env=running.environment_of("worker-short"), check=True)
    finally:
        codes = running.down()
    assert codes["worker-short"] == codes["worker-long"] == 0, codes
    hour.machine_s += time.monotonic() - began
    hour.reach("deployed with the Compose file", 900)


def image_of(hour: Hour) -> Path:
    """What the Dockerfile makes: an environment with the packages that its RUN lines install."""
    text = next(block.text for block in blocks(TUTORIAL) if block.language == "dockerfile")
    image = hour.reader.home / "image"
    venv.create(image, with_pip=True)
    for line in re.findall(r"^RUN (pip install .+)$", text, re.MULTILINE):
        command = line.replace("--no-cache-dir ", "")
        subprocess.run(
            ["bash", "-c", f"{image}/bin/{command} -q"], cwd=hour.reader.folder, check=True, stderr=subprocess.DEVNULL
        )
    return image


def table(milestones: list[Milestone]) -> str:
    """The milestones as text, with the rates of the reader."""
    lines = [f"{'':34}{'machine':>9}{'reader':>9}{'counted':>9}{'limit':>9}"]
    for one in milestones:
        verdict = "ok" if one.took_s <= one.limit_s else "MISSED"
        lines.append(
            f"{one.title:34}{one.machine_s:8.1f}s{one.reader_s:8.0f}s{one.took_s:8.0f}s{one.limit_s:8.0f}s  {verdict}"
        )
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    rates = f"{load}; a reader reads {READS_WORDS_PER_MINUTE} and types {TYPES_WORDS_PER_MINUTE} words a minute"
    return "\n".join([*lines, f"({rates}, and needs {COPIES_S:g} s to copy a file)"])


def main() -> int:
    """Runs the hour and prints its table. 0: each limit is kept."""
    home = Path(tempfile.mkdtemp(prefix="hour-"))
    checkout = home / "jobrunner"
    subprocess.run(["git", "clone", "-q", "--depth", "1", ROOT.as_uri(), str(checkout)], check=True)
    (home / "jobrunner-checkout").symlink_to(checkout)
    hour = Hour(home)
    try:
        first_job(hour)
        deployed(hour)
    finally:
        hour.reader.close()
        print(table(hour.milestones))
        if "--keep" not in sys.argv:
            shutil.rmtree(home, ignore_errors=True)
    return int(any(one.took_s > one.limit_s for one in hour.milestones))


if __name__ == "__main__":
    sys.exit(main())
