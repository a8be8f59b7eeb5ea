"""The recorder of histories: what it writes of a call, which calls it leaves out, and the whole history of a client."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobrunner import AsyncClient, Client, Item, chain, job
from jobrunner.broker import broker, scripts
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.current import pinned
from jobrunner.client.operations.flow_relay import relay
from jobrunner.clock import monotonic
from jobrunner.errors import OutcomeUnknown, UsageError
from jobrunner.soak.history import recorder
from jobrunner.soak.history.__main__ import violations
from jobrunner.soak.history.call_records import PARSERS, SETTING, UNRELATED
from jobrunner.soak.history.reader import read
from tests.support.server import Server

NOT_JUDGED = {
    "batch_advance", "batch_begin", "batch_claim", "batch_decide", "batch_fail", "batch_fill", "batch_renew",
    "batch_stage", "delete_queue", "fan_out", "pop", "purge",
}  # fmt: skip
"""Scripts that move tasks, and for which the checker has no rule."""


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def calls(folder: Path, do: str) -> list[dict[str, Any]]:
    return [call for line in lines(folder) for call in line.get("calls", ()) if call["do"] == do]


def test_each_script_is_recorded_or_known_to_move_no_task() -> None:
    names = {file.stem for file in (Path(scripts.__file__).parent / "lua").glob("*.lua")}
    known = {*PARSERS, *SETTING, "join_prepare", "reserve"}
    assert names == known | UNRELATED | NOT_JUDGED


def test_what_a_client_does_is_recorded_and_right(folder: Path, client: Client) -> None:
    start, end = client.queue("line/start"), client.queue("line/end")
    start.configure(max_inflight=8, max_attempts=0)
    start.push_many([Item(n, id=f"i{n}") for n in range(8)])
    start.push("first", id="first", priority=2)
    start.push("later", id="later", in_=3600)
    held = {lease.id: lease for lease in start.reserve(8)}
    assert list(held)[:2] == ["first", "i0"]
    held["first"].commit()
    start.commit_many([held["i0"], held["i1"]])
    held["i2"].rollback(delay=0)
    held["i3"].release()
    held["i4"].extend()
    held["i5"].move("end")
    client.task("i7", queue="line/start").cancel()
    assert [lease.id for lease in end.reserve(1)] == ["i5"]
    client.close()

    with Client(client.settings.url, client.settings.prefix) as other:
        recorder.finish(folder, broker_of(other), keys_of(other))
    assert "max_inflight" in calls(folder, "configure")[0]["fields"]
    assert calls(folder, "enqueue")[0]["tasks"] == [[f"i{n}", 1, ""] for n in range(8)]
    others = [call["tasks"] for call in calls(folder, "enqueue")[1:3]]
    assert others == [[["first", 2, ""]], [["later", 1, "+3600000.0"]]]
    assert calls(folder, "move")[0]["to"] == "line/end"
    history = read(folder)
    assert [op.do for op in history.tasks["i5"]] == ["enqueue", "reserve", "move", "reserve", "snapshot"]
    assert [op.do for op in history.tasks["i4"]] == ["enqueue", "reserve", "extend", "snapshot"]
    assert history.tasks["i2"][-1].said == [["line/start", "waiting"]]
    assert not list(violations(read(folder)))


def test_calls_are_recorded_with_what_the_checker_compares(folder: Path, client: Client) -> None:
    """The name of an enqueue, by which it is known when it is sent again; when a task is due again; whether a release
    returns its token; max_attempts."""
    queue = client.queue("line/start")
    queue.configure(max_attempts=4)
    queue.push_many([Item(n, id=f"i{n}") for n in range(6)])
    held = queue.reserve(6)
    held[0].rollback(delay=3)
    held[1].move("end", delay=7)
    reports = [(lease.id, lease.token, delay) for lease, delay in zip(held[2:], ("", "!", "~50", 60), strict=True)]
    broker_of(client).run(leases.release(keys_of(client).queue("line/start"), reports))
    queue.push("y", id="y")

    assert len({call["sent"] for call in calls(folder, "enqueue")} - {""}) == 2
    assert [calls(folder, do)[0]["tasks"][0][2] for do in ("fail", "move")] == ["+3000", "+7000.0"]
    released = [task[2:] for task in calls(folder, "release")[0]["tasks"]]
    assert released == [["", True], ["", False], ["+50", True], ["+60", False]]
    recorder.finish(folder, broker_of(client), keys_of(client))
    history = read(folder)
    assert (history.tasks["i0"][1].most, list(violations(history))) == (4, [])


def test_a_limit_that_is_divided_among_shards_was_set_then(folder: Path, client: Client) -> None:
    queue = client.queue("wide")
    for limits in ({"partitions": 2, "max_inflight": 6}, {"max_inflight": 2}):
        queue.configure(**limits)
        queue.push_many([Item(n) for n in range(8)])
        queue.commit_many(queue.reserve(6))

    changed = {call["queue"] for call in calls(folder, "configure") if "max_inflight" in call["fields"]}
    assert changed == {"wide", "wide@1"}
    recorder.finish(folder, broker_of(client), keys_of(client))
    assert not list(violations(read(folder)))


@job(name="recorded.step", queue="steps")
def step() -> None:
    """A step of a flow."""


def test_a_task_that_a_join_enqueues_may_come_from_there(folder: Path, client: Client) -> None:
    with pinned(client):
        chain(step.bind(), step.bind()).enqueue()
    ((task, *_),) = calls(folder, "join_prepare")[0]["tasks"]
    for _ in range(2):
        (lease,) = client.queue("steps").reserve(1)
        lease.commit()
        relay(broker_of(client), keys_of(client), tags=["steps"])

    assert lease.id == task
    recorder.finish(folder, broker_of(client), keys_of(client))
    assert not list(violations(read(folder)))


def test_calls_of_asyncio_are_recorded(folder: Path, server: Server, keys: Keys) -> None:
    async def use() -> None:
        async with AsyncClient(server.url, keys.prefix) as client:
            await client.queue("q").push("x", id="x")
            await client.queue("q").counts()

    asyncio.run(use())
    assert calls(folder, "enqueue")[0]["tasks"] == [["x", 1, ""]]
    assert not calls(folder, "queue_counts")


def test_the_outcome_of_a_call_without_a_reply_is_unknown(
    folder: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_reply = broker.read_reply

    def lose(connection: Any) -> object:
        read_reply(connection)  # the server has done it
        raise ConnectionResetError("lost")

    client.queue("q").reserve(3)  # the server has the script now, so the lost reply is that of the call
    client.queue("q").push("x", id="x")
    with monkeypatch.context() as patched:
        patched.setattr(broker, "read_reply", lose)
        with pytest.raises(OutcomeUnknown):
            client.queue("q").reserve(3)

    assert lines(folder)[-1]["unknown"] == "ConnectionResetError: lost"
    recorder.finish(folder, broker_of(client), keys_of(client))
    history = read(folder)
    assert (history.tasks["x"][-1].said, list(violations(history))) == ([["q", "pending"]], [])
    assert [(op.queue, count) for op, count in history.lost_reserves] == [("q", 3)]


def test_a_fork_writes_a_file_of_its_own(folder: Path, client: Client) -> None:
    client.queue("q").push("x", id="x")
    if (pid := os.fork()) == 0:
        try:
            client.queue("q").push("y", id="y")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)

    assert len(list(folder.glob("*.jsonl"))) == 2
    recorder.finish(folder, broker_of(client), keys_of(client))
    assert set(read(folder).tasks) == {"x", "y"}


def test_each_call_is_recorded_once_however_often_a_process_is_asked(
    folder: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(recorder.FOLDER, str(folder))
    recorder.install_if_asked()
    client.queue("q").push("x", id="x")
    assert len(calls(folder, "enqueue")) == 1


def test_a_new_interpreter_records_and_runs_the_sitecustomize_that_is_hidden(
    tmp_path: Path, server: Server, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import builtins; builtins.hidden = 'ran'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "theirs"))
    environment = recorder.environment_for(tmp_path / "history", tmp_path / "site")
    program = f"from jobrunner import Client; Client({server.url!r}, {keys.prefix!r}).queue(hidden).push(1, id='x')"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **environment}, check=True, cwd=tmp_path)

    (call,) = calls(tmp_path / "history", "enqueue")
    assert (call["queue"], call["tasks"]) == ("ran", [["x", 1, ""]])


def test_a_history_is_not_sealed_while_a_process_records(
    folder: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_ENDS_S", 0.0)
    (folder / f"1-{monotonic():.6f}.jsonl").write_text("")
    with pytest.raises(UsageError, match=r"\[1\] still record into"):
        recorder.finish(folder, broker_of(client), keys_of(client))


def test_a_process_that_has_the_pid_of_one_that_recorded_is_not_awaited(
    folder: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_ENDS_S", 0.0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        (folder / f"{other.pid}-{monotonic() - 100:.6f}.jsonl").write_text("")

        recorder.finish(folder, broker_of(client), keys_of(client))

        other.communicate(b"\n")
    assert (folder / recorder.SEAL).exists()
