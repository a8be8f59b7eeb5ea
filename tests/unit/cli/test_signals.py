"""Signals that come while a command starts. Each program is a process of its own, as signals belong to a process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobrunner.cli.signals import folder_of_start
from jobrunner.errors import UsageError

ROOT = Path(__file__).parents[3]
SWALLOWED = """
import os, signal, sys, threading, weakref
from jobrunner.cli.signals import leave_at_signals, on_signals

class Thing:
    pass

def in_a_callback():
    thing = Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    del thing

def around_an_import():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        import json
    except:
        pass

leave_at_signals()
{way}()
stopped = threading.Event()
on_signals(stop=stopped.set, renew=lambda: None)
sys.exit(0 if stopped.wait(30) else "the signal is lost")
"""


@pytest.mark.parametrize("way", ["in_a_callback", "around_an_import"])
def test_a_stop_whose_exception_was_dropped_while_the_process_started_is_answered_later(way: str) -> None:
    """A supervisor asks once, and would wait for ever."""
    ran = subprocess.run(
        [sys.executable, "-c", SWALLOWED.format(way=way)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_one_that_nothing_drops_ends_the_process() -> None:
    program = SWALLOWED.replace("{way}()", "os.kill(os.getpid(), signal.SIGTERM)")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert ran.returncode == 128 + signal.SIGTERM


def test_a_process_under_nohup_goes_on_ignoring_sighup() -> None:
    """nohup lets it outlive its terminal, whose end is no request for new processes either."""
    program = """
import os, signal, sys, threading
from jobrunner.cli.signals import leave_at_signals, on_signals

signal.signal(signal.SIGHUP, signal.SIG_IGN)
leave_at_signals()
asked, stopped = [], threading.Event()
on_signals(stop=stopped.set, renew=lambda: asked.append("renew"))
os.kill(os.getpid(), signal.SIGHUP)
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(str(asked or "") if stopped.wait(30) else "SIGTERM is lost")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stderr.strip() == ""


def test_ctrl_c_while_the_modules_of_the_command_are_imported_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    ran = subprocess.run(
        [sys.executable, "-m", "jobrunner", "status"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_a_worker_that_starts_in_a_deleted_folder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that begins anew after its release was deleted."""
    (folder := tmp_path / "release").mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(UsageError, match="the working directory was deleted, so the modules of jobs cannot be found"):
        folder_of_start()


BEGINS_ANEW = """
import os, sys
from pathlib import Path
from jobrunner.cli.signals import Restart

print(Path.cwd().name, file=sys.stderr)
release = Path(os.environ["PWD"])
if Path.cwd().name == "one":
    renewal = Restart()
    release.unlink()
    release.symlink_to("two")
    renewal.ask(lambda: None)
elif Path.cwd().name == "two":
    renewal = Restart()
    release.unlink()
    renewal.ask(lambda: None)
    Path.cwd().rename(Path.cwd().with_name("three"))
"""


CLOSES_ITS_CLIENT = """
import sys
from pathlib import Path
from jobrunner import Client
from jobrunner.cli.signals import Restart

class Noted(Client):
    def close(self):
        super().close()
        print("closed", file=sys.stderr)

renewal = Restart()
Noted("redis://127.0.0.1:1")
print("begins", file=sys.stderr)
if not Path("again").exists():
    Path("again").touch()
    renewal.ask(lambda: None)
"""


def test_clients_are_closed_before_a_worker_begins_anew(tmp_path: Path) -> None:
    """They send then what they have buffered."""
    ran = subprocess.run(
        [sys.executable, "-c", CLOSES_ITS_CLIENT],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (ran.returncode, ran.stderr.split()) == (0, ["begins", "closed", "begins", "closed"])


def test_a_worker_begins_anew_in_the_folder_that_a_link_leads_to_by_then(tmp_path: Path) -> None:
    """And where it is when the link is gone."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "current").symlink_to("one")
    environment = {**os.environ, "PWD": str(tmp_path / "current"), "PYTHONPATH": str(ROOT)}

    ran = subprocess.run(
        [sys.executable, "-c", BEGINS_ANEW],
        cwd=tmp_path / "one", env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (ran.returncode, ran.stderr.split()) == (0, ["one", "two", "three"])
