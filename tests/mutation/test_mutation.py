"""The mutation command finds mutants of each kind, kills one that a test notices, and lists one that none does."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.mutation.installed import install, lua_files, own_text, traced
from tests.mutation.lua_syntax import NotLua, parse
from tests.mutation.mutants import mutants_of
from tests.mutation.results import Judgement, Result, Score, add_to_record, read_judgements, read_record
from tests.mutation.traces import is_busy
from tests.support.server import Server

TINY = """local function give(count)
  if count < 2 and not is_paused then redis.call('ZADD', waiting, 'NX', count, 'id') end
  return count + 1
end
"""


PASSES_ONCE = """
from jobrunner.broker.call import resp_args
from jobrunner.broker.calls.queues import await_capacity
from tests.simulation.server import SimulatedServer
from tests.simulation.workers import KEYS

runs = []

def test_it():
    SimulatedServer().ask(*resp_args(await_capacity(KEYS.queue("q"), lasts_ms=1), b"1"), now_ms=1)
    runs.append(1)
    assert len(runs) < 3

class Failing:
    def __del__(self):
        raise RuntimeError("too late to be raised")

def test_left_behind():
    Failing()
"""
"""A test that fails from its third run on, whatever the scripts do: it is run once to be traced, once with a mutant.
And one that always fails, behind its end."""


def changes(text: str) -> set[tuple[str, str]]:
    return {(one.before, one.after) for one in mutants_of("tiny.lua", text)}


def result(status: str, after: str = "x", by: str = "") -> Result:
    return Result("key", "tiny.lua", 1, "y", after, status, by=by)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("count < 2 and", "count <= 2 and"),
        ("count < 2 and", "count < 3 and"),
        ("2 and not", "2 or not"),
        ("not is_paused", "is_paused"),
        ("if count < 2 and not is_paused then", "if true then"),
        ("if count < 2 and not is_paused then", "if false then"),
        ("redis.call('ZADD', waiting, 'NX', count, 'id')", "do end"),
        ("'NX'", "'XX'"),
        ("'id'", "'id_'"),
    ],
)
def test_a_line_has_mutants_of_each_kind(before: str, after: str) -> None:
    line = TINY.splitlines()[1].strip()
    assert (line, line.replace(before, after)) in changes(TINY)


def test_a_returned_value_is_changed_and_left_out() -> None:
    assert {("return count + 1", "return count + 2"), ("return count + 1", "return nil")} < changes(TINY)


def test_names_of_commands_and_of_keys_and_arguments_stay() -> None:
    text = "local a = unpack(KEYS)\nlocal now_ms, b = unpack(ARGV, 1, 2)\nredis.call('HSET', a, b)\n"
    assert changes(text) == {("redis.call('HSET', a, b)", "do end")}


def test_a_line_without_anything_else_loses_its_value() -> None:
    assert changes("local found = read(key)\n") == {("local found = read(key)", "local found = nil")}


def test_a_sign_is_told_from_a_subtraction() -> None:
    assert ("x = -y - z", "x = y - z") in changes("x = -y - z\n")
    assert ("x = -y - z", "x = -y + z") in changes("x = -y - z\n")


@pytest.mark.parametrize("file", lua_files())
def test_each_line_of_the_scripts_that_does_something_has_a_mutant(file: str) -> None:
    text = own_text(file)
    covered = {one.line for one in mutants_of(file, text)}
    lines = dict(enumerate(text.splitlines(), 1))
    begun = {text.count("\n", 0, one.start) + 1: one.kind for one in parse(text).statements}
    is_script = not file.startswith("lib/")
    bare = {number for number, kind in begun.items() if number not in covered and not (is_script and number < 3)}
    assert [
        lines[number]
        for number in bare
        if begun[number] not in ("function", "for", "repeat") and " = " in lines[number]
    ] == []


def test_what_is_not_lua_is_refused_with_its_line() -> None:
    with pytest.raises(NotLua, match="line 2: 'end' where a name was expected"):
        parse("local x = 1\nlocal end\n")
    with pytest.raises(NotLua, match="line 1: '!y' begins no word"):
        parse("local x = !y")


def test_a_mutant_is_in_every_script_that_includes_its_file_and_leaves_no_trace() -> None:
    mutant = next(one for one in mutants_of("lib/numbers.lua", own_text("lib/numbers.lua")))
    changed = install({mutant.file: mutant.mutated})
    before = {script.name: script.source for script in changed}
    back = install({})
    assert {"enqueue", "reserve"} <= before.keys() == {script.name for script in back}
    assert all(script.source != before[script.name] for script in back)


def test_a_server_that_runs_a_script_without_end_is_busy(start_server: Callable[..., Server]) -> None:
    """A mutant may loop for ever: without a restart, the server would refuse all that follow as if they did not
    compile."""
    server = start_server(lua_time_limit="50")
    assert not is_busy(server)
    with server.connect(socket_timeout=0.3) as connection, pytest.raises(redis.TimeoutError):
        connection.eval("while true do end", 0)
    assert is_busy(server)


def test_traced_scripts_report_each_statement_once() -> None:
    text = traced("lib/numbers.lua")
    assert text.count("jr_trace(") == len(set(text.split("jr_trace("))) - 1 > 5


def test_a_score_leaves_out_what_no_caller_can_notice_and_what_does_not_compile() -> None:
    verdicts = {"same": "equivalent", "bad": "accepted"}
    judged = {("tiny.lua", "y", after): Judgement(verdict, "why") for after, verdict in verdicts.items()}
    killed = [result("killed", by="test")] * 17 + [result("killed", by="time")]
    found = [*killed, result("survived", "same"), result("survived", "bad"), result("invalid")]
    score = Score.of([*found, result("survived")], judged)
    assert score == Score(killed=18, survived=2, equivalent=1, late=1)
    assert score.share == 0.9
    low, high = score.interval()
    assert 0.69 < low < 0.9 < high < 0.98


def test_a_judgement_without_a_reason_or_with_an_unknown_verdict_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "judged.toml"
    page.write_text('[[survivor]]\nfile = "a.lua"\nbefore = "x"\nafter = "y"\nverdict = "equivalent"\n')
    with pytest.raises(ValueError, match="has no reason; add it"):
        read_judgements(page)
    page.write_text(page.read_text().replace("equivalent", "fine") + 'reason = "so"\n')
    with pytest.raises(ValueError, match="verdict 'fine' of 'x' is none of"):
        read_judgements(page)


def test_a_mutant_keeps_its_key_while_other_lines_change() -> None:
    """A record by the whole file would forget every kill of it with each change."""
    before, after = mutants_of("tiny.lua", TINY), mutants_of("tiny.lua", f"local more = 5\n{TINY}")
    assert {one.key for one in before} < {one.key for one in after}
    assert {one.key for one in before if one.line == 2}.isdisjoint(
        one.key for one in mutants_of("tiny.lua", TINY.replace("'id'", "'ids'"))
    )


def test_equal_lines_have_keys_of_their_own() -> None:
    assert len({one.key for one in mutants_of("tiny.lua", TINY + TINY)}) == 2 * len(mutants_of("tiny.lua", TINY))
    everything = [one.key for file in lua_files() for one in mutants_of(file, own_text(file))]
    assert len(set(everything)) == len(everything)


def test_the_record_keeps_kills_and_forgets_lines_that_are_no_more(tmp_path: Path) -> None:
    record = tmp_path / "killed.txt"
    many = mutants_of("tiny.lua", TINY * 3)
    first, *others = many
    add_to_record([first.key, "01234567"], many, record)
    assert read_record(record) == {first.key}, "the other one is no mutant"
    add_to_record([one.key for one in others], many, record)
    assert read_record(record) == {one.key for one in many}
    assert max(map(len, record.read_text().splitlines())) <= 120
    add_to_record([], others, record)
    assert read_record(record) == {one.key for one in others}


def test_each_judged_survivor_is_a_mutant_of_today() -> None:
    """A judgement of a line that changed judges nothing."""
    known = {(file, one.before, one.after) for file in lua_files() for one in mutants_of(file, own_text(file))}
    assert [where for where in read_judgements() if where not in known] == []


@pytest.mark.processes
def test_the_command_kills_what_a_test_notices_and_lists_what_none_does(tmp_path: Path) -> None:
    test = "tests/lua/test_await_capacity.py::test_taking_tasks_hints_while_somebody_waits_and_not_else"
    once = tmp_path / "test_once.py"
    once.write_text(PASSES_ONCE)
    words = ["--script", "await_capacity", "--tests", test, "--tests", str(once), "--folder", str(tmp_path), "--json"]
    said = subprocess.run([sys.executable, "-m", "tests.mutation", *words], capture_output=True, text=True, check=False)
    found = json.loads(said.stdout)
    status = {one["after"]: one["status"] for one in found["mutants"]}
    assert status["do end"] == "killed", "without the note, no producer is woken"
    assert {one["by"] for one in found["mutants"] if one["status"] == "killed"} == {"test"}
    assert "fails without a mutant, so it is left out: " in said.stderr
    assert re.search(r"::test_it: assert \d < 3", said.stderr), "it was run again, whichever mutant it failed for"
    assert "::test_left_behind: pytest.PytestUnraisableExceptionWarning" in said.stderr
    unlimited = "return capacity == math.huge and 1 or math.max(capacity, 0)"
    assert status[unlimited] == "survived", "the queue of the test has a limit"
    assert said.returncode == 1, "below 95 %"
    assert found["tried"] == found["wanted"] == len(status)


@pytest.mark.processes
def test_the_command_records_kills_and_does_not_repeat_them(tmp_path: Path) -> None:
    test = "tests/lua/test_await_capacity.py::test_taking_tasks_hints_while_somebody_waits_and_not_else"
    record = tmp_path / "killed.txt"
    words = ["--script", "await_capacity", "--tests", test, "--record", str(record), "--json"]

    def run(folder: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.mutation", *words, "--folder", str(tmp_path / folder)]
        return json.loads(subprocess.run(command, capture_output=True, check=False).stdout)

    first = run("first")
    killed = {one["key"] for one in first["mutants"] if one["status"] == "killed"}
    assert read_record(record) == killed
    assert killed
    second = run("second")
    assert {one["key"] for one in second["mutants"]} == {one["key"] for one in first["mutants"]} - killed


@pytest.mark.processes
def test_one_mutant_of_each_line_is_drawn_by_the_seed(tmp_path: Path) -> None:
    def count(*words: str) -> int:
        command = [sys.executable, "-m", "tests.mutation", "--script", "enqueue", "--script", "lib/numbers", *words]
        options = ["--report", "--json", "--folder", str(tmp_path)]
        return int(json.loads(subprocess.run([*command, *options], capture_output=True, check=False).stdout)["wanted"])

    files = ("enqueue.lua", "lib/numbers.lua")
    lines = {(file, one.line) for file in files for one in mutants_of(file, own_text(file))}
    assert count("--each-line") == len(lines) < count()
    assert count("--each-line", "--sample", "3") == 3
