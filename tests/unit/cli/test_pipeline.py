"""`jobrunner pipeline`, but for `run` with processes, which tests/acceptance has."""

import io
import os
import pty
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jobrunner.broker.calls import batch_log
from jobrunner.cli import output
from jobrunner.cli.pipeline_show import fitting_table
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.etl import Pipeline
from jobrunner.etl.progress import PipelineView, Progress, Rate, StationView
from jobrunner.inspector.snapshot import QueueView
from jobrunner.jobs.batch_record import BatchRecord, write_record
from tests.support.registries import forget_pipelines

ORDERS = """
from jobrunner.etl import Pipeline, To

orders = Pipeline("orders")

@orders.station("raw", to=("home", "abroad"), max_attempts=2)
def route(item):
    return To("home" if item.payload["home"] else "abroad")

@orders.sink("home")
def store(item):
    return item.payload

orders.declare("abroad", max_size=3)
"""


@pytest.fixture(autouse=True)
def _no_other_pipelines() -> None:
    """Modules that other tests import declare some."""
    forget_pipelines()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> str:
    """A module with the pipeline `orders`."""
    name = f"cli_orders_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(ORDERS)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_show_has_a_line_for_each_station_and_one_for_the_whole(cli: Any, client: Client, module: str) -> None:
    client.queue("orders/raw").push_many([{"home": True}] * 3)

    result = cli("pipeline", "show", "orders", module, "--over", "0.01")

    heading, raw, *rest = result.out.splitlines()
    assert result.code == 0
    assert heading.split() == [
        "STATION",
        "TO",
        "WAITING",
        "SCHEDULED",
        "PENDING",
        "DEAD",
        "IN/S",
        "OUT/S",
        "LEFT",
        "STATE",
    ]
    assert raw.split() == ["raw", "home,", "abroad", "3", "0", "0", "0", "0", "0", "-", "station"]
    assert [line.split()[0] for line in rest] == ["home", "abroad", "orders"]
    assert rest[1].endswith("not served")
    assert rest[2].endswith("0 finished, 0 dropped")


def test_show_names_queues_with_items_that_the_pipeline_does_not_declare(
    cli: Any, client: Client, module: str
) -> None:
    """After a deploy that renamed a station it told of no open item, and nothing took those that were left."""
    client.queue("orders/old").push_many([1, 2])
    client.queue("orders/older").push(3)
    client.queue("orders/older").pop()
    client.queue("others/old").push(4)
    result = cli("pipeline", "show", "orders", module, "--over", "0")
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines] == ["STATION", "raw", "home", "abroad", "old", "orders"]
    assert lines[4].split()[1:6] + lines[4].split()[-2:] == ["-", "2", "0", "0", "0", "not", "declared"]
    assert lines[5].split()[2] == "2"
    assert cli("pipeline", "show", "orders", module, "--over", "0.01", "--until-empty").code == 0


def test_show_as_json(cli: Any, client: Client, module: str) -> None:
    client.queue("orders/raw").push({})

    seen = cli("pipeline", "show", "orders", module, "--over", "0", "--json").value

    assert (seen["name"], seen["open"], seen["rate"]["left_s"]) == ("orders", 1, None)
    assert [(one["queue"], one["waiting"], one["kind"]) for one in seen["stations"]] == [
        ("raw", 1, "station"), ("home", 0, "sink"), ("abroad", 0, "queue"),
    ]  # fmt: skip


def test_watching_ends_when_nothing_is_open(cli: Any, module: str) -> None:
    result = cli("pipeline", "show", "orders", module, "--until-empty")
    lines = cli("pipeline", "show", "orders", module, "--until-empty", "--json")

    assert (result.code, result.out.count("STATION")) == (0, 1)
    assert lines.out.count("\n") == 1
    assert lines.value["open"] == 0


@pytest.mark.parametrize("has_rich", [True, False])
def test_on_a_terminal_the_table_is_drawn_over_itself(
    cli: Any, module: str, monkeypatch: pytest.MonkeyPatch, has_rich: bool
) -> None:
    monkeypatch.setattr("jobrunner.cli.pipeline_show.draws_over", lambda _: True)
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.live", None)

    result = cli("pipeline", "show", "orders", module, "--until-empty")

    assert result.code == 0
    assert "STATION" in result.out


def test_a_watched_table_fits_80_columns_however_much_there_is_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = Rate(in_per_s=123_456.0, out_per_s=123_456.7, left_s=7200.0)
    stations = tuple(
        StationView(
            queue=f"a-rather-long-name-of-a-station-{n}", kind="station", targets=("one-target", "another-target"),
            waiting=1_234_567, scheduled=98_765, pending=12_345, dead=50_000, done=0, paused=n == 1, totals={},
            rate=rate,
        )
        for n in range(3)
    )  # fmt: skip
    seen = PipelineView(
        name="orders", stations=stations, open=3_000_000, dead=150_000, succeeded=9_999_999, dropped=1_000, rate=rate
    )

    for width in (80, 95):
        monkeypatch.setattr(output, "screen_width", lambda width=width: width)
        lines = fitting_table(seen, width).splitlines()
        assert max(map(len, lines)) <= width
        assert lines[0].split()[:2] == ["STATION", "WAIT"]
        assert len(lines) == 5
        assert "1.2M" in lines[1]
        assert "paused" in lines[2]
        assert "9999999 finished" in lines[-1]
    full = fitting_table(seen, 200).splitlines()
    assert full[1].index("one-target, another-target") == full[0].index("TO")
    assert full[2].index("paused") == full[0].index("STATE")


def test_show_marks_what_a_chain_leads_to(cli: Any, client: Client) -> None:
    lake = Pipeline("lake", client)
    lake.spark_station("raw", to="late")(lambda df, spark: df)
    lake.spark_sink("late", table="delta:/lake/late")
    lake.chain("raw")

    assert "⇒ late" in cli("pipeline", "show", "lake", "--over", "0").out.splitlines()[1]
    shown = cli("pipeline", "show", "lake", "--over", "0", "--json").value["stations"]
    assert [(one["queue"], one["targets"], one["is_chained"]) for one in shown] == [
        ("raw", ["late"], True), ("late", [], True),
    ]  # fmt: skip


def test_show_says_why_a_station_on_spark_has_stopped(cli: Any, client: Client) -> None:
    lake = Pipeline("lake", client)
    lake.spark_sink("late", table="delta:/lake/late")
    lake.push("late", {"n": 1})
    cause = "TableError: token='hidden' " + 100 * "x"
    stopped = BatchRecord(id="b", outcome="split", attempt=1, began_ms=1e12, items=9, cause=cause, stops=True)

    def note(record: BatchRecord) -> None:
        broker_of(client).run_many(batch_log.note(keys_of(client).queue("lake/late"), [write_record(record)]))

    note(stopped)
    note(replace(stopped, outcome="lost", cause="BatchLost: y", stops=False))
    (shown,) = cli("pipeline", "show", "lake", "--over", "0", "--json").value["stations"]
    assert shown["stopped"].startswith("TableError: token=•••••• xxx")
    lines = cli("pipeline", "show", "lake", "--over", "0").out.splitlines()
    assert lines[1].split()[-1] == "stopped"
    assert lines[-1].startswith("late stopped, as the error is no item's: TableError: ")
    narrow = fitting_table(Progress(client, lake.graph).look(), 80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "late stopped, as" in narrow

    note(replace(stopped, outcome="decided", cause="", stops=False))
    assert "stopped" not in cli("pipeline", "show", "lake", "--over", "0").out


def test_show_says_why_a_chain_has_stopped_that_begins_in_python(cli: Any, client: Client) -> None:
    lake = Pipeline("lake", client)
    lake.station("raw", to="late")(lambda item: None)
    lake.spark_sink("late", table="delta:/lake/late")
    lake.chain("raw")
    lake.push("raw", {"n": 1})
    stopped = BatchRecord(id="b", outcome="split", attempt=1, began_ms=1e12, items=9, cause="TableError: x", stops=True)
    broker_of(client).run_many(batch_log.note(keys_of(client).queue("lake/raw"), [write_record(stopped)]))

    assert cli("pipeline", "show", "lake", "--over", "0", "--json").value["stations"][0]["stopped"] == "TableError: x"


def test_list_tells_of_declared_pipelines_and_of_those_on_the_server(cli: Any, client: Client, module: str) -> None:
    assert cli("pipeline", "list").err == "no pipeline is declared, and the server has none\n"
    client.queue("stock/in").push_many(list("ab"))
    client.queue("plain").push("x")

    assert cli("pipeline", "list", module, "--json").value == [
        {"name": "orders", "stations": 2, "queues": 3, "open": 0, "dead": 0},
        {"name": "stock", "stations": None, "queues": 1, "open": 2, "dead": 0},
    ]
    assert cli("pipeline", "list", module).out.splitlines()[2].split() == ["stock", "-", "1", "2", "0"]


def test_list_tells_that_there_may_be_others_while_the_list_of_queues_cannot_be_read(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlisted = QueueView(name="(others)", totals={}, workers=0, problem="node h:1 does not answer")
    monkeypatch.setattr("jobrunner.cli.pipeline.queue_views", lambda *_: [unlisted])
    assert "queue (others) cannot be read: node h:1 does not answer\n" in cli("pipeline", "list").err


def test_diagram_is_text_or_mermaid_or_json(cli: Any, module: str) -> None:
    assert cli("pipeline", "diagram", "orders", module).out.startswith("raw     station  → home  → abroad\n")
    assert cli("pipeline", "diagram", "orders", module, "--format", "mermaid").out.startswith("flowchart LR\n")
    drawn = cli("pipeline", "diagram", "orders", module, "--json").value
    assert drawn["queues"][0]["targets"] == ["orders/home", "orders/abroad"]


def test_push_adds_one_item_and_prints_its_id(cli: Any, client: Client, module: str) -> None:
    task_id = cli("pipeline", "push", "orders/raw", '{"home": true}', "-m", module, "--priority", "2").out.strip()
    also = cli("pipeline", "push", "orders/raw", "null", "--in", "5m", "--json").value

    assert (client.task(task_id).record().payload, client.task(task_id).record().priority) == (b'{"home":true}', 2)
    assert (client.task(also["id"]).state, also["queue"]) == ("scheduled", "orders/raw")
    assert client.queue("orders/raw").settings().max_attempts == 2


def feed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_push_reads_lines_from_stdin(cli: Any, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, "".join(f"{number}\n" for number in range(2500)) + "\n")

    assert cli("pipeline", "push", "orders/raw", "-", "--create").out == "pushed 2,500 items into orders/raw\n"
    assert client.queue("orders/raw").counts()["waiting"] == 2500


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143)], ids=["Ctrl-C", "SIGTERM"])
def test_a_push_that_a_signal_ends_says_what_was_pushed(
    cli: Any, client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: BaseException
) -> None:
    """It was silent at SIGTERM: the file was pushed again from its first line, and its items were there twice."""

    class Signalled(io.BytesIO):
        def __next__(self) -> bytes:
            if self.tell() >= 4405:
                raise end
            return self.readline()

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Signalled(b"\n" * 5 + b"1\n" * 2500)))

    try:
        result = cli("pipeline", "push", "orders/raw", "-", "--create")
        code, said = result.code, result.err
    except SystemExit as ended:
        code, said = ended.code, capsys.readouterr().err

    assert code == (143 if isinstance(end, SystemExit) else 130)
    assert "interrupted: 1,000 items were pushed into orders/raw, up to line 1005, and maybe the next ones\n" in said
    assert client.queue("orders/raw").counts()["waiting"] == 1000


@pytest.mark.processes
def test_who_watches_a_push_from_another_program_sees_one_line_that_counts(client: Client, server: Any) -> None:
    ours, terminal = pty.openpty()
    told = {"JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": keys_of(client).prefix}
    words = ["pipeline", "push", "orders/raw", "-", "--create"]
    subprocess.run(
        [sys.executable, "-m", "jobrunner", *words],
        env=os.environ | told, input=b"1\n" * 2500, stdout=subprocess.DEVNULL, stderr=terminal, timeout=60, check=True,
    )  # fmt: skip
    os.close(terminal)
    with os.fdopen(ours, "rb", buffering=0) as seen:
        said = seen.read(4096).decode()

    assert said == "".join(f"\rPushing  {n} lines" for n in ("1,000", "2,000", "2,500")) + "\r\n"


@pytest.mark.processes
def test_on_a_dumb_terminal_a_watched_table_is_there_at_once_and_below_the_last_one(
    client: Client, server: Any, tmp_path: Path
) -> None:
    """As in an Emacs shell: drawing over it printed the last table alone, after Ctrl-C."""
    (tmp_path / "dumb_orders.py").write_text(ORDERS)
    ours, terminal = pty.openpty()
    told = {"JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": keys_of(client).prefix, "TERM": "dumb"}
    words = ["pipeline", "show", "orders", "dumb_orders", "--watch", "--over", "100ms"]
    process = subprocess.Popen(
        [sys.executable, "-m", "jobrunner", *words],
        cwd=tmp_path, env=os.environ | told, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    said = b""
    try:
        while said.count(b"STATION") < 3 and select.select([ours], [], [], 30)[0]:
            said += os.read(ours, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(ours)

    assert said.count(b"STATION") >= 3
    assert b"\x1b" not in said


@pytest.mark.parametrize(
    ("line", "shown", "why"),
    [
        ("oops", "'oops'", "Expecting value"),
        ('{"x": [NaN]}', "'{\"x\": [NaN]}'", "NaN is a number of Python and not of JSON"),
        ("[" * 100_000, f"'{'[' * 60}'", "recursion"),
    ],
)
def test_a_line_that_is_no_json_is_named_with_what_was_pushed_before(
    cli: Any, client: Client, monkeypatch: pytest.MonkeyPatch, line: str, shown: str, why: str
) -> None:
    feed(monkeypatch, "1\n" * 1200 + f"{line}\n")

    result = cli("pipeline", "push", "orders/raw", "-", "--create")

    assert (result.code, client.queue("orders/raw").counts()["waiting"]) == (2, 1000)
    assert "1,000 items were pushed" in result.err
    assert f"line 1201 is no JSON: {shown} (" in result.err
    assert why in result.err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"price": 1e999}', "$.price is inf, which JSON does not have"),
        (r'{"name": "\ud800"}', "surrogates not allowed"),
        (f'"{"x" * 2_000_000}"', "the payload has 2000002 bytes"),
    ],
)
def test_a_line_that_no_queue_takes_is_named_too(
    cli: Any, client: Client, monkeypatch: pytest.MonkeyPatch, line: str, why: str
) -> None:
    feed(monkeypatch, "1\n" * 1200 + f"\n{line}\n" + "1\n" * 10)

    result = cli("pipeline", "push", "orders/raw", "-", "--create")

    assert (result.code, client.queue("orders/raw").counts()["waiting"]) == (2, 1000)
    assert "of the lines before line 1202, 1,000 items were pushed into orders/raw, up to line 1000" in result.err
    assert why in result.err


@pytest.mark.parametrize("typed", ["orders/rwa", "order/raw"])
def test_push_without_a_module_names_the_nearest_queue_for_a_mistyped_one(typed: str, cli: Any, client: Client) -> None:
    client.queue("orders/raw").push({})

    refused = cli("pipeline", "push", typed, "1")

    assert (refused.code, refused.out) == (1, "")
    assert f"there is no queue '{typed}'; did you mean 'orders/raw'?; --create does it all the same" in refused.err
    assert client.queues() == ["orders/raw"]
    assert cli("pipeline", "push", "orders/raw", "1").code == 0
    assert cli("pipeline", "push", typed, "1", "--create").code == 0


def test_a_full_queue_says_no(cli: Any, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, "1\n" * 4)

    result = cli("pipeline", "push", "orders/abroad", "-", "-m", module)

    assert result.code == 1
    assert "of the lines before, 0 items were pushed" in result.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["show", "order", "{}"], "did you mean 'orders'"),
        (["show", "orders"], "no module that declares pipeline 'orders' is named"),
        (["show", "orders", "no_such_module"], "cannot be imported"),
        (["push", "raw", "1"], "write NAME/QUEUE"),
        (["push", "orders/rwa", "1", "-m", "{}"], "did you mean 'raw'"),
        (["push", "orders/raw", "one", "--create"], "is no JSON"),
        (["push", "orders/raw", "1", "--priority", "7", "--create"], "priority=7"),
        (["run", "orders", "{}", "--master", "local"], "no station on Spark"),
        (["run", "orders", "{}", "--master", "local", "--remote", "sc://x"], "--remote exclude each other"),
        (["run", "orders", "{}", "--conf", "spark.driver.memory=4g"], "no station on Spark"),
        (["run", "orders", "{}", "--conf", "driver.memory=4g"], "did you mean 'spark.driver.memory'?"),
        (["run", "orders", "{}", "--conf", "spark.driver.memory"], "has no value; write --conf spark.driver.memory=4g"),
    ],
)
def test_misuse_is_told_in_one_line(cli: Any, module: str, words: list[str], told: str) -> None:
    result = cli("pipeline", *(word.format(module) for word in words))

    assert (result.code, result.err.count("\n")) == (2, 1), result.err
    assert told in result.err
