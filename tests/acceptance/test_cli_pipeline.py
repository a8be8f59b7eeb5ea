"""`jobrunner pipeline run` as people use it: in processes of its own, until all is done or it is stopped."""

import json
import signal
from typing import Any

import pytest

from jobrunner import Client
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

SHOP = """
from jobrunner.etl import Pipeline, To

shop = Pipeline("shop")

@shop.station("raw", to=("small", "large"), max_size=500)
def route(item):
    return To("large" if item.payload > 5 else "small", [item.payload])

@shop.station("small", to="large")
async def grow(item):
    return [item.payload[0] * 10]

@shop.sink("large", history=60)
def store(item):
    return sum(item.payload)
"""


def feed(client: Client, count: int) -> None:
    client.queue("shop/raw").push_many(number % 10 for number in range(count))


def finished(client: Client) -> int:
    return client.queue("shop/large").totals().get("succeeded", 0)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_burst_runs_the_whole_pipeline_and_ends(shell: Any, client: Client, processes: int) -> None:
    shell.write("shop.py", SHOP)
    feed(client, 300)
    client.queue("elsewhere").push("not of the pipeline")
    client.queue("shop/renamed").push("of no station")

    said = shell.run("pipeline", "run", "shop", "shop", "--burst", "--processes", str(processes))

    assert said.code == 0, said.err
    assert 1 <= said.err.count("worker started") <= processes
    assert finished(client) == 300
    results = [record.result for record in client.queue("shop/large").history(300)]
    assert sorted(results) == sorted([10 * n if n <= 5 else n for n in range(10)] * 30)
    assert client.queue("shop/raw").settings().max_size == 500
    assert client.queue("elsewhere").counts()["waiting"] == 1
    assert said.err.count("items are in a queue that the pipeline does not declare") == 1
    assert "queue=shop/renamed" in said.err


@pytest.mark.parametrize("processes", [1, 2])
def test_every_command_of_a_pipeline_uses_the_client_that_it_was_declared_with(
    shell: Any, client: Client, processes: int
) -> None:
    own = f"{client.settings.prefix}.own"
    declared = SHOP.replace('Pipeline("shop")', f'Pipeline("shop", Client(prefix="{own}"))')
    shell.write("shop.py", f"from jobrunner import Client\n{declared}")

    pushed = shell.run("pipeline", "push", "shop/raw", "7", "-m", "shop")
    shown = shell.run("pipeline", "show", "shop", "shop", "--over", "0", "--json")
    run = shell.run("pipeline", "run", "shop", "shop", "--burst", "--processes", str(processes))

    assert (pushed.code, shown.code, run.code) == (0, 0, 0), run.err
    assert json.loads(shown.out)["stations"][0]["waiting"] == 1
    with Client(client.settings.url, own) as there:
        assert finished(there) == 1
    assert client.queues() == []


def test_it_works_until_it_is_asked_to_stop(shell: Any, client: Client) -> None:
    shell.write("shop.py", SHOP)
    process = shell.start("pipeline", "run", "shop", "shop", "--json")
    feed(client, 50)
    wait_for(lambda: finished(client) == 50, timeout_s=30)

    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 0, err
    assert json.loads(out)["finished"] >= 50


def test_a_pipeline_that_does_not_fit_together_is_not_run(shell: Any) -> None:
    """Neither alone nor together with jobs."""
    shell.write("shop.py", SHOP.replace('to="large"', 'to="lagre"'))

    for words in (["pipeline", "run", "shop", "shop"], ["work", "shop"]):
        said = shell.run(*words, "--burst")
        assert said.code == 2
        assert "did you mean 'large'?" in said.line


def test_jobrunner_work_runs_stations_too(shell: Any, client: Client) -> None:
    shell.write("shop.py", SHOP)
    feed(client, 20)

    said = shell.run("work", "shop", "--burst")

    assert (said.code, finished(client)) == (0, 20), said.err


def test_a_pipeline_is_run_with_spans_of_its_stations(client: Client, shell: Any) -> None:
    shell.write(
        "lines.py",
        "from jobrunner.etl import Pipeline\n\nline = Pipeline('line')\n\n"
        "@line.station('raw', to='done')\ndef parse(item): return item.payload\n\n"
        "@line.sink('done')\ndef store(item): ...\n",
    )
    client.queue("line/raw").push(1)

    said = shell.run("pipeline", "run", "line", "lines", "--burst", "--otel", OTEL_TRACES_EXPORTER="console")

    assert said.code == 0, said.err
    assert '"name": "process line/raw"' in said.err
    assert '"jobrunner.moved_to": "line/done"' in said.err
