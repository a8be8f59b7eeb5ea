"""The findings of the doctor and their texts."""

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from jobrunner.broker.calls.server import ServerFacts
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.errors import ServerRefused
from jobrunner.inspector.doctor.environment import (
    appendfsync,
    check_server,
    clock_check,
    durability_checks,
    facts_checks,
    files_check,
    folder_check,
    modules_checks,
    name_check,
    packages_check,
    parser_check,
    python_check,
    reached_check,
    url_source,
)
from jobrunner.inspector.doctor.workload import queue_checks, types_checks
from jobrunner.inspector.snapshot import QueueView, overview, server_facts
from jobrunner.jobs import registry
from tests.support import full_disk
from tests.support.absent_node import take_away
from tests.support.server import Server

SOUND = {
    "name": "valkey", "version": "8.0.1", "maxmemory": 0, "maxmemory_policy": "noeviction", "used_memory": 10,
    "clients": 1, "aof": True,
}  # fmt: skip


def verdicts(**changed: object) -> dict[str, str]:
    facts = ServerFacts(**{**SOUND, **changed})  # type: ignore[arg-type]
    return {check.what: check.verdict for check in facts_checks(facts)}


def test_a_sound_server_passes() -> None:
    assert set(verdicts().values()) == {"ok"}


@pytest.mark.parametrize(
    ("what", "verdict", "changed"),
    [
        ("version", "fail", {"version": "6.0.16"}),
        ("version", "ok", {"version": "6.2.0"}),
        ("version", "ok", {"version": "10.0.0"}),
        ("eviction", "fail", {"maxmemory_policy": "volatile-lru"}),
        ("memory", "warn", {"maxmemory": 100, "used_memory": 81}),
        ("memory", "ok", {"maxmemory": 100, "used_memory": 79}),
        ("durability", "warn", {"aof": False}),
        ("durability", "fail", {"aof_written": False}),
        ("snapshot", "warn", {"snapshot_written": False}),
        ("role", "fail", {"replica": True}),
        ("clients", "warn", {"clients": 81, "max_clients": 100}),
    ],
)
def test_each_fact_has_its_verdict(what: str, verdict: str, changed: dict[str, object]) -> None:
    assert verdicts(**changed)[what] == verdict


def promised(asked: str, fsync: str = "everysec", **changed: object) -> list[tuple[str, str]]:
    facts = ServerFacts(**{**SOUND, **changed})  # type: ignore[arg-type]
    return [(check.what, check.verdict) for check in durability_checks(facts, fsync, asked)]


def test_what_a_durability_promises_is_held_against_what_the_server_can_keep() -> None:
    assert promised("none") == [("fsync", "ok")]
    assert promised("none", fsync="no") == [("fsync", "warn")]
    assert promised("none", fsync="") == []
    assert promised("fsync") == [("promise", "ok")]
    assert promised("fsync", aof=False) == [("promise", "fail")]
    assert promised("fsync", name="redis", version="7.0.15") == [("promise", "fail")]
    assert promised("fsync", name="redis", version="7.2.0") == [("promise", "ok")]
    assert promised("replicated") == [("promise", "fail")]
    assert promised("replicated", replicas=1) == [("promise", "ok")]


@pytest.mark.parametrize(("name", "version"), [("redis", "7.2.0"), ("valkey", "7.2.4"), ("redis", "7.0.15")])
def test_a_server_whose_clients_cannot_wait_for_the_disk_is_not_said_to_have_them_wait(name: str, version: str) -> None:
    facts = ServerFacts(**{**SOUND, "name": name, "version": version})  # type: ignore[arg-type]
    (check,) = durability_checks(facts, "everysec", "none")
    waits = 'durability="fsync" of a client waits for it'
    assert check.found == f"each second; {'no client can wait for it on this server' if version < '7.2' else waits}"


def test_the_servers_policy_and_limits_are_read_from_the_server_itself(client: Client) -> None:
    seen = server_facts(client)

    assert seen is not None
    assert appendfsync(client) == "everysec"
    assert (seen.replica, seen.replicas, seen.aof_written) == (False, 0, True)
    assert seen.max_clients > 0


def test_a_limit_of_few_files_is_worth_a_look() -> None:
    assert [files_check(limit).verdict for limit in (256, 1024, -1)] == ["warn", "ok", "ok"]


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        ("from jobrunner import job\n@job()\ndef in_a_module(): ...\n", "ok", "in_a_module"),
        ("from jobrunner.etl import Pipeline\n@Pipeline('alone').sink('raw')\ndef end(item): ...\n", "ok", "stations"),
        ("", "warn", "the modules declare none; put @job() above a Job class"),
    ],
)
def test_modules_without_jobs_are_told_unless_they_have_stations(
    text: str, verdict: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for declared in ("_definitions", "_stations", "_drivers"):  # of other tests' modules
        monkeypatch.setattr(registry, declared, {})
    (tmp_path / "to_be_checked.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "to_be_checked", raising=False)

    found = {check.what: check for check in modules_checks(["to_be_checked"])}

    assert (found["module"].verdict, found["jobs"].verdict) == ("ok", verdict)
    assert words in f"{found['jobs'].found}; {found['jobs'].advice}"


def test_this_machine_has_what_is_needed() -> None:
    assert (python_check().verdict, parser_check().verdict) == ("ok", "ok")
    assert "redis-py" in parser_check().found


def test_a_package_that_is_too_old_is_to_be_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "5.0.9" if name == "redis" else real(name))
    monkeypatch.setattr(metadata, "requires", lambda _: ["click>=8.1", "redis>=5.2", 'rich>=13; extra == "top"'])

    check = packages_check()

    assert (check.verdict, check.found) == ("fail", "older than redis>=5.2")


def test_without_hiredis_the_doctor_says_what_it_would_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "hiredis":
            raise metadata.PackageNotFoundError(name)
        return "6.0"

    monkeypatch.setattr(metadata, "version", version)

    assert "jobrunner-queue[fast]" in parser_check().advice


def test_a_slow_server_is_worth_a_look() -> None:
    assert (reached_check(0.3).verdict, reached_check(80.0).verdict) == ("ok", "warn")


def test_a_queue_with_tasks_but_no_worker_is_found() -> None:
    served = QueueView(name="mail", waiting=3, workers=1, totals={})
    alone = QueueView(name="mail", waiting=3, workers=0, totals={}, dead=2, paused=True)

    assert list(queue_checks(served)) == []
    assert [check.found for check in queue_checks(alone)] == [
        "no worker serves mail, with 3 to do", "mail: paused without an end, and 3 wait", "mail: 2 dead",
    ]  # fmt: skip


def test_a_server_that_is_away_ends_the_look(tmp_path: Path) -> None:
    with Client(f"unix://{tmp_path}/nothing", retry_timeout=0) as client:
        (check,) = check_server(client)

    assert (check.what, check.verdict) == ("server", "fail")
    assert "no server at" in check.advice


def test_a_server_whose_disk_is_full_is_looked_at_all_the_same(start_server: Callable[..., Server]) -> None:
    own = start_server(**full_disk.OPTIONS)
    with Client(own.url) as client:
        client.queue("mail").push({})
        full_disk.fill(own)

        found = {check.what: check for check in check_server(client)}
        assert [found[what].verdict for what in ("server", "writes", "snapshot")] == ["ok", "fail", "warn"]
        assert found["writes"].found.startswith("the server takes no writes at present: ")
        assert found["clock"].verdict == "ok"
        assert [queue.waiting for queue in overview(client).queues] == [1]
        with pytest.raises(ServerRefused, match=r"takes no writes at present: .*; see its disk and its log"):
            client.queue("mail").push({})


def test_a_server_that_takes_no_writes_for_want_of_replicas_is_found(start_server: Callable[..., Server]) -> None:
    """It refuses no PING, so all checks passed, and the first enqueue was refused."""
    own = start_server(**{"min-replicas-to-write": "1"})
    with Client(own.url) as client:
        found = {check.what: check for check in check_server(client)}
        assert (found["server"].verdict, found["writes"].verdict) == ("ok", "fail")
        assert found["writes"].advice == "attach replicas, or lower min-replicas-to-write"
        with pytest.raises(ServerRefused, match="takes no writes at present"):
            client.queue("mail").push({})
        with own.connect() as raw:
            raw.config_set("min-replicas-to-write", 0)
        assert "writes" not in {check.what for check in check_server(client)}


@pytest.mark.parametrize("gone", ["workers", "queues"])
def test_the_other_checks_are_made_while_the_node_of_a_list_is_away(
    client: Client, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """The command ended with the error of that node, and printed no check at all."""
    client.queue("mail").push_many([1, 2])
    client.queue("mail").pause()
    key = getattr(keys_of(client), gone)
    take_away(broker_of(client), monkeypatch, lambda one: one == key)
    found = {check.what: check for check in check_server(client)}
    assert {what for what, check in found.items() if check.verdict == "fail"} == {gone}
    assert found[gone].advice == "node h:1 of the cluster does not answer"
    assert found["clock"].verdict == "ok"
    assert ("queue" in found) == (gone == "workers"), "the queues can be read"
    assert not list(types_checks(client, ["known"]))


def test_the_other_checks_are_made_while_the_node_that_is_asked_for_rights_is_away(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.queue("mail").push(1)
    key = keys_of(client).queue("default").waiting
    take_away(broker_of(client), monkeypatch, lambda one: one == key)
    found = {check.what: check for check in check_server(client)}
    assert (found["rights"].verdict, found["rights"].found) == ("warn", "cannot be asked")
    assert "workers" in found


def test_this_machines_clock_agrees_with_a_server_on_it(client: Client) -> None:
    assert clock_check(client).verdict == "ok"


def test_a_clock_that_is_off_is_found(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobrunner.inspector.doctor.environment.unix_ms", lambda: 0)

    assert clock_check(client).verdict == "warn"


def test_a_folder_that_does_not_exist_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert folder_check(tmp_path / "new" / "deep").verdict == "ok"
    assert folder_check(tmp_path / "file" / "below").verdict == "fail"


def test_a_package_that_is_not_installed_at_all_is_worth_a_look() -> None:
    assert packages_check("no-such-distribution-here").verdict == "warn"
    assert packages_check("click").verdict == "ok"


@pytest.mark.parametrize(
    ("given", "environment", "source"),
    [
        ("redis://a", {"JOBRUNNER_URL": "redis://b"}, "named by --url"),
        (None, {"JOBRUNNER_URL": "redis://b", "REDIS_URL": "redis://c"}, "named by JOBRUNNER_URL"),
        (None, {"REDIS_URL": "redis://c"}, "named by REDIS_URL"),
        (None, {}, "the embedded server of this folder, as no URL is named"),
    ],
)
def test_the_doctor_says_who_named_the_server(
    given: str | None, environment: dict[str, str], source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert url_source(given, environment) == source


def test_the_project_file_may_name_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.jobrunner]\nurl = "redis://d"\n')
    monkeypatch.chdir(tmp_path)

    assert url_source(None, {}) == "named by [tool.jobrunner] in pyproject.toml"


def test_the_package_of_another_project_beside_this_one_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1.4.0" if name == "jobrunner" else real(name))

    found = name_check()

    assert (found.verdict, found.found) == (
        "fail", "another project's package, jobrunner 1.4.0, shares the folder jobrunner/",
    )  # fmt: skip
    assert "pip uninstall jobrunner, then" in found.advice


def test_without_it_the_name_is_right() -> None:
    assert (name_check().verdict, name_check().found) == ("ok", "jobrunner-queue")
