"""An error in a script names the script and the line of the file, although scripts are linked of many files."""

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jobrunner.broker import scripts
from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, ScriptCommand
from jobrunner.broker.calls import leases
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.redis_errors import ResponseError, server_error
from jobrunner.broker.scripts import Script, load, readable_error
from jobrunner.errors import ServerFull, ServerRefused

LUA = Path(scripts.__file__).parent / "lua"
FILES = {
    "faulty.lua": """local waiting = unpack(KEYS)
local now_ms, where, tail = unpack(ARGV)
-- faulty: fails where it is asked to.
-- include first second
-- include third
-- rarely fail_rarely
-- rarely fail_more_rarely helped

if where == 'body' then return absent_in_body end
if where == 'common' then return fail_in_common() end
if where == 'command' then return fail_in_command(waiting) end
if where == 'raised' then
  return fail_with_text()
end
if where == 'rarely' then return fail_rarely(LIMIT) end
if where == 'more rarely' then return fail_more_rarely() end
if where == 'table' then return redis.error_reply('ERR of its own') end
local last = absent_at_the_end
return last
""",
    "lib/first.lua": """-- A comment.
local LIMIT, BOUND = 7, 8

local function unused()
  return 1
end

local function fail_in_common()
  if LIMIT > BOUND then return end
  return absent_in_common
end
""",
    "lib/second.lua": """local shared = {}

local function fail_in_command(key)
  shared.n = 1
  return redis.call('INCR',
    key)
end

local function fail_with_text()
  error('a text of its own')
end
""",
    "lib/third.lua": """-- It fails, too.
local function helped()
  return absent_in_helped
end

local function fail_rarely(limit)
  local more = limit + BOUND
  return absent_rarely
end

local function fail_more_rarely()
  return helped()
end
""",
}


def line_of(file: str, text: str) -> str:
    """file:line of the only line with that text."""
    (number,) = [number for number, line in enumerate(FILES[file].splitlines(), 1) if text in line]
    return f"{file}:{number}"


WHERE = {
    "body": (line_of("faulty.lua", "absent_in_body"), "nonexistent global variable 'absent_in_body'"),
    "common": (line_of("lib/first.lua", "absent_in_common"), "nonexistent global variable 'absent_in_common'"),
    "command": (line_of("lib/second.lua", "INCR"), "not an integer"),
    "raised": (line_of("lib/second.lua", "a text of its own"), "a text of its own"),
    "rarely": (line_of("lib/third.lua", "absent_rarely"), "nonexistent global variable 'absent_rarely'"),
    "more rarely": (line_of("lib/third.lua", "absent_in_helped"), "nonexistent global variable 'absent_in_helped'"),
    "the end": (line_of("faulty.lua", "absent_at_the_end"), "nonexistent global variable 'absent_at_the_end'"),
}


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch, keys: Any) -> Any:
    """faulty(where): a call of a script that fails there. It stays in the cache of scripts, which is not cleared: the
    calls of the package hold the scripts that are in it."""
    read = scripts._text
    monkeypatch.setattr(scripts, "_text", lambda file: FILES[file] if file in FILES else read(file))
    script = ScriptCommand("faulty", lambda reply: reply)
    return lambda where: script.on(keys.queue("q"), where=where, tail="")


@pytest.fixture
def text_at_key(raw: Any, keys: Any) -> None:
    """The script increments a value that is no number."""
    raw.set(keys.queue("q").waiting, "x")


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.usefixtures("text_at_key")
def test_an_error_names_script_file_and_line(broker: Broker, faulty: Any, where: str) -> None:
    place, what = WHERE[where]
    for _ in range(2):  # EVAL, then EVALSHA
        with pytest.raises(ServerRefused) as raised:
            broker.run(faulty(where))
        assert f"the server answered with an error: faulty.lua failed at {place}: " in str(raised.value)
        assert what in str(raised.value)
        assert "user_script" not in str(raised.value)
        assert faulty(where).script.sha.decode() not in str(raised.value)


@pytest.mark.usefixtures("text_at_key")
def test_in_a_batch_each_call_names_its_own(broker: Broker, faulty: Any) -> None:
    calls: list[Call[Any]] = [faulty(where) for where in WHERE]
    for found, (place, _) in zip(broker.run_each(calls), WHERE.values(), strict=True):
        assert f"faulty.lua failed at {place}: " in str(found)
    with pytest.raises(ServerRefused, match=r"faulty\.lua failed at lib/third\.lua:8: "):
        broker.run_many([faulty("rarely"), faulty("body")])


def test_so_do_the_calls_of_asyncio(server: Any, faulty: Any) -> None:
    async def run() -> None:
        broker = AsyncBroker(Endpoint(server.url))
        try:
            with pytest.raises(ServerRefused, match=r"faulty\.lua failed at lib/first\.lua:10: "):
                await broker.run(faulty("common"))
            with pytest.raises(ServerRefused, match=r"faulty\.lua failed at lib/third\.lua:8: "):
                await broker.run_many([faulty("rarely"), faulty("common")])
        finally:
            await broker.close()

    asyncio.run(run())


def test_an_error_that_a_script_returns_has_no_line(broker: Broker, faulty: Any) -> None:
    with pytest.raises(ServerRefused, match=r"answered with an error: of its own$"):
        broker.run(faulty("table"))


def test_an_error_in_a_real_script_is_that_line_of_its_file(broker: Broker, raw: Any, keys: Any) -> None:
    queue = keys.queue("q")
    raw.set(queue.settings, "no hash")
    with pytest.raises(ServerRefused, match=r"WRONGTYPE") as raised:
        broker.run(leases.reserve(queue, 1, token=1))
    file, line = str(raised.value).partition("reserve.lua failed at ")[2].split(": ")[0].split(":")
    assert "redis.call('HGETALL', settings)" in (LUA / file).read_text("utf-8").splitlines()[int(line) - 1]


FORMS = {
    "Redis 7 and Valkey": "user_script:{n}: Script attempted to access nonexistent global variable 'x' "
    "script: {sha}, on @user_script:{n}.",
    "a command there": "WRONGTYPE Operation against a key script: {sha}, on @user_script:{n}.",
    "no right to a command": "ACL failure in script: User app has no permissions to run the 'rpush' command "
    "script: on @user_script:{n}.",
    "no memory": "command not allowed when used memory > 'maxmemory'. script: on @user_script:{n}.",
    "Redis 6.2": "Error running script (call to f_{sha}): @user_script:{n}: user_script:{n}: attempt to call x",
    "not compiled": "Error compiling script (new function): user_script:{n}: '=' expected near 'x'",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("on_cluster", [False, True])
def test_every_line_of_every_script_is_found_in_each_form_of_the_text(form: str, on_cluster: bool) -> None:
    lines_of = cache(lambda file: (LUA / file).read_text("utf-8").splitlines())
    for path in sorted(LUA.glob("*.lua")):
        script = load(path.stem)
        sent = script.on_cluster if on_cluster else script
        if on_cluster and "{sha}" not in FORMS[form]:
            script = sent  # nothing else tells
        for number, line in enumerate(sent.source.decode().splitlines(), 1):
            told = readable_error(script, FORMS[form].format(n=number, sha=sent.sha.decode()))
            place = told.removeprefix(f"{path.name} failed at ").split(": ")[0]
            assert "user_script" not in told
            assert "script: on" not in told
            assert not told.endswith(".")
            if "(linked)" not in place:
                file, _, at = place.partition(":")
                there = lines_of(file)[int(at) - 1]
                assert line.split()[:1] == there.split()[:1] or "rarely_" in line or there.split()[0].isupper(), told


def test_a_script_that_is_not_that_of_the_files_keeps_the_text_of_the_server() -> None:
    known = load("reserve")
    other = Script(known.name, known.source + b"\n-- changed", b"0" * 40, known.keys, known.args)
    assert "failed at user_script:3: x" in readable_error(other, "user_script:3: x")
    assert readable_error(known, "NOSCRIPT no such script") == "NOSCRIPT no such script"


def test_a_full_server_is_told_as_such_also_within_a_script() -> None:
    error = server_error(ResponseError("user_script:1: OOM command not allowed"), load("reserve"))
    assert isinstance(error, ServerFull)
    assert "reserve.lua failed at reserve.lua:1: OOM command not allowed" in str(error)
