"""No text from the server controls a terminal: tables, records, events, errors, logs; JSON is plain JSON."""

import io
import json

import pytest
import redis
import structlog
from click.testing import CliRunner

from jobrunner import Job, Worker, job
from jobrunner.cli.error_boundary import guarded
from jobrunner.cli.main import jobrunner as command_line
from jobrunner.cli.output import answer_json, echo
from jobrunner.client.client import keys_of
from jobrunner.formatting import printable
from jobrunner.log_output import log_to_stderr
from tests.security.conftest import Connect

EVIL = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202e\x08"
MARKS = ("\x1b", "\x07", "\x9b", "\u202e", "\x08")


@job(name="terminal.bad", queue="terminal", max_attempts=1, result_ttl=600)
class Bad(Job):
    """Fails with what it is given."""

    text: str

    def run(self) -> None:
        raise ValueError(f"{self.text} is bad")


COMMANDS = (
    ["tasks", "list", "terminal"],
    ["tasks", "show", "ID"],
    ["dead", "list", "terminal"],
    ["history", "list", "terminal"],
    ["events"],
    ["status"],
    ["queues", "list"],
    ["queues", "settings", "terminal"],
    ["periodic", "list"],
    ["pipeline", "list"],
    ["doctor"],
    ["top", "--once"],
    ["tasks", "show", f"no-{EVIL}"],
    ["dead", "requeue", "terminal", EVIL],
)


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_no_command_writes_what_steers_a_terminal(connect: Connect, raw: redis.Redis, form: list[str]) -> None:
    client = connect()
    client.queue("terminal").configure(history=600)
    task = Bad(text=EVIL).enqueue()
    Worker(client=client, queues=["terminal"]).run(burst=True)
    Bad(text=EVIL).enqueue()
    keys = keys_of(client).queue("terminal")
    for name in ("headers", "progress", "result", "results", "brand_new", "failures", "type"):
        raw.hset(keys.task(task.id), name, json.dumps({EVIL: EVIL}, ensure_ascii=False) if name != "type" else EVIL)
    raw.sadd(keys_of(client).queues, "ok")
    raw.xadd(keys_of(client).events, {"kind": EVIL, "queue": "terminal", "error": EVIL})
    where = ["--url", client.settings.url, "--prefix", keys_of(client).prefix]
    ran = 0
    for words in COMMANDS:
        command = [task.id if one == "ID" else one for one in words]
        told = CliRunner().invoke(command_line, [*command, *form, *where], standalone_mode=False)
        ran += told.exit_code == 0
        text = told.output
        assert not [mark for mark in MARKS if mark in text], (command, text[-400:])
    assert ran >= 6


def test_errors_and_tracebacks_of_commands_neither(capsys: pytest.CaptureFixture[str], connect: Connect) -> None:
    client = connect()
    for words in (["tasks", "show", EVIL], ["tasks", "show", EVIL, "--debug"], ["queues", "pause", EVIL]):
        assert guarded(command_line, [*words, "--url", client.settings.url]) != 0
    told = capsys.readouterr()
    assert "Error: " in told.err
    assert not [mark for mark in MARKS if mark in told.out + told.err]


def test_lines_of_the_log_on_a_console_neither(monkeypatch: pytest.MonkeyPatch, connect: Connect) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    before = structlog.get_config()
    try:
        log_to_stderr("console")
        log = structlog.get_logger("x")
        log.info(EVIL, value=EVIL)
        try:
            raise ValueError(EVIL)
        except ValueError:
            log.exception("failed")
    finally:
        structlog.configure(**before)
    assert "PWNED" in stream.getvalue()
    assert not [mark for mark in MARKS if mark in stream.getvalue()]


def test_text_that_is_harmless_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "Zoë → 日本 €\n\tline two"
    echo(text)
    answer_json({"a": text, "evil": EVIL})
    told = capsys.readouterr().out
    assert told.startswith(text)
    assert json.loads(told[len(text) :]) == {"a": text, "evil": EVIL}
    assert "日本" in told.partition("{")[2]
    assert printable(EVIL) == "\\x1b]0;PWNED\\x07\\x1b[2J\\x9b31m\\u202e\\x08"
