"""`jobrunner soak` as a process: it holds, is kind to a server of others, and says no to builds that are broken."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.reliability.stage import SITE
from tests.reliability.tampering import TAMPER
from tests.support.server import Server
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
HISTORY = "violations in the history"
SHORT = ("--keepalive", "1.5", "--workers", "2", "--rate", "60", "--seed", "1")


BROKEN = ("--duration", "24s", "--faults", "kills", "--every", "4s", "--workers", "3", "--task-time", "100ms",
          "--patience", "4")  # fmt: skip

_slow = partial(pytest.param, marks=pytest.mark.slow)
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(240)]


def soak(folder: Path, *words: str, **tampering: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(SITE), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)}
    environment |= {f"{TAMPER}{name.upper()}": value for name, value in tampering.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "jobrunner", "soak", *SHORT, "--report", str(folder / "found.json"), *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
    )  # fmt: skip


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    said, err = process.communicate(timeout=220)
    return process.returncode, said, err


def broken(folder: Path) -> set[str]:
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return {check["name"] for check in found["checks"] if check["holds"] is False}


@pytest.fixture
def folder() -> Any:
    """A short one: sockets lie in it."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="jr-", dir="/tmp") as made:
        yield Path(made)


def test_it_holds_writes_what_it_found_and_leaves_nothing(folder: Path) -> None:
    history = folder / "history"
    words = ("--plot", str(folder / "plots/soak.svg"), "--history", str(history))
    code, said, err = ended(soak(folder, "--duration", "20s", "--every", "2s", *words))

    assert code == 0, said + err
    assert "HELD: nothing was lost" in said
    found = json.loads((folder / "found.json").read_text())
    assert found["held"]
    assert found["faults"]
    assert found["totals"]["finished"] > 200
    assert len(found["samples"]) > 8
    assert all(sample["memory"] for sample in found["samples"])
    assert (folder / "plots/soak.svg").read_text().count("<path") > 8
    assert {"name": HISTORY, "value": "none", "bound": "none", "holds": True} in found["checks"]
    again = subprocess.run([sys.executable, "-m", "jobrunner.soak.history", history],
                           capture_output=True, text=True, cwd=ROOT)  # fmt: skip
    assert (again.returncode, again.stdout.rpartition(", ")[2]) == (0, "0 violations\n"), again
    assert sorted(path.name for path in folder.iterdir()) == ["found.json", "history", "plots"]


@pytest.mark.parametrize(
    ("tampering", "caught"),
    [
        ({"fault": "loses"}, {"acknowledged tasks lost", HISTORY}),
        _slow({"fault": "doubles"}, {"begun again without a fault that explains it", HISTORY}),
        _slow({"fault": "leaks"}, {"still there after the drain", HISTORY}),
        _slow({"fault": "hoards"}, {"keys", "keys that should be gone"}),
        _slow({"leak": "200000"}, {"memory of the worker that was never killed", "its descriptors"}),
    ],
    ids=["loses", "doubles", "leaks", "hoards", "grows"],
)
def test_a_build_with_a_fault_does_not_hold(folder: Path, tampering: dict[str, str], caught: set[str]) -> None:
    code, said, err = ended(soak(folder, *BROKEN, "--history", str(folder / "history"), **tampering))

    assert code == 1, said + err
    assert "NOT HELD" in said, err
    assert broken(folder) >= caught


def test_on_a_server_of_others_it_touches_its_own_keys_alone_also_when_it_is_interrupted(
    folder: Path, server: Server, raw: redis.Redis
) -> None:
    raw.set("theirs", 1)
    process = soak(folder, "--url", server.url, "--duration", "60s", "--every", "1s", "--prefix", "mine")
    wait_for(lambda: raw.keys("mine-soak-*:*periodic:SoakTicking"), timeout_s=60)

    process.send_signal(signal.SIGINT)
    code, said, err = ended(process)

    assert code == 0, said + err
    assert "ends early" in err
    assert "restarts" not in err.partition("seed")[0]
    assert raw.keys() == [b"theirs"]


@pytest.mark.slow
def test_interrupted_twice_it_ends_at_once_and_leaves_nothing(
    folder: Path, server: Server, raw: redis.Redis
) -> None:
    process = soak(folder, "--url", server.url, "--duration", "60s")
    wait_for(lambda: raw.keys("soak-*:*work:counters"), timeout_s=60)

    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    for line in process.stderr:
        if "ends early" in line:
            break
    process.send_signal(signal.SIGTERM)
    code, _, _ = ended(process)

    assert code == 130
    assert raw.keys() == []
    assert list(folder.iterdir()) == []
