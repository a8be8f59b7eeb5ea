"""`jobrunner enqueue`: the task it makes."""

from collections.abc import Callable
from typing import Any

from jobrunner.client.client import Client
from jobrunner.task import TaskState


def test_it_enqueues_a_task_and_prints_its_id(cli: Callable[..., Any], add: Any, client: Client) -> None:
    result = cli("enqueue", "add", "x=1", "y=2")

    record = client.task(result.out.strip()).record()
    assert result.code == 0
    assert (record.type, record.queue, record.payload) == ("add", "maths", b'{"x":1,"y":2}')


def test_options_place_the_task(cli: Callable[..., Any], add: Any, client: Client) -> None:
    result = cli("enqueue", "add", "x=1", "--in", "1h", "--priority", "2", "--queue", "vip", "--id", "mine", "--json")

    record = client.task("mine", queue="vip").record()
    assert result.value == {"id": "mine", "queue": "vip", "type": "add", "is_new": True}
    assert (record.state, record.priority) == (TaskState.SCHEDULED, 2)


def test_an_instant_with_a_zone_is_a_due_time(cli: Callable[..., Any], add: Any, client: Client) -> None:
    task_id = cli("enqueue", "add", "x=1", "--at", "2100-01-01T01:00:00+01:00").out.strip()

    when = client.task(task_id).record().when
    assert when is not None
    assert when.isoformat() == "2100-01-01T00:00:00+00:00"


def test_nothing_is_written_for_a_wrong_parameter(cli: Callable[..., Any], add: Any, raw: Any) -> None:
    result = cli("enqueue", "add", "x=1.5")

    assert result.code == 2
    assert "x of job 'add' is '1.5'; it must be int" in result.err
    assert raw.dbsize() == 0


def test_it_says_when_the_id_is_there_already(cli: Callable[..., Any], add: Any, client: Client) -> None:
    first = cli("enqueue", "add", "x=1", "--id", "mine", "--json")
    again = cli("enqueue", "add", "x=2", "--id", "mine", "--json")
    err = cli("enqueue", "add", "x=2", "--id", "mine")

    assert '"is_new": true' in first.out
    assert '"is_new": false' in again.out
    assert (err.code, err.out.strip()) == (0, "mine")
    assert "no new task: mine is there already" in err.err
