"""Flows on pages: steps, callbacks, results passed on, links up and down."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner import Job, Worker, chain, group, job
from jobrunner.broker.call import command
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.current import forget, use
from jobrunner.inspector.flows import read_flow, recent_flows
from jobrunner.jobs.registry import forget as forget_job

JSON = {"accept": "application/json"}
Browse = Callable[..., Any]


@job(queue="flow-a", name="flow_fetch", max_attempts=1)
def fetch(page: int) -> dict[str, Any]:
    if page < 0:
        raise ValueError("no such page")
    return {"page": page, "token": "s3cret"}


@job(queue="flow-b", name="flow_total")
class Total(Job):
    def run(self) -> int:
        return len(self.task.results)


@pytest.fixture(autouse=True)
def current(client: Client) -> Iterator[None]:
    use(client)
    yield
    forget()


def work(client: Client) -> None:
    Worker(client=client, queues=["flow-a", "flow-b"], concurrency=2).run(burst=True)


def test_a_flow_has_its_steps_their_states_links_and_results(browse: Browse, client: Client) -> None:
    group_ = group(*(fetch.bind(page) for page in range(3)), on_complete=Total())
    sent = chain(group_, Total(), group(fetch.bind(8), chain(fetch.bind(9), Total()))).enqueue()
    browser = browse()

    before = browser.get(f"/flows/{sent.id}", headers=JSON).json()
    assert [row["state"] for row in before["flow"]["steps"]] == ["waiting"] * 3 + ["not begun"] * 4
    work(client)

    found = browser.get(f"/flows/{sent.id}", headers=JSON).json()
    rows = [row["member"] for row in found["flow"]["steps"]]
    assert [row["state"] for row in found["flow"]["steps"]] == ["succeeded"] * 7
    assert [row[3] for row in rows] == [[0, 0]] * 3 + [[0, 3]] + [[3, 1]] * 2 + [[5, 1]]
    assert [row[4] for row in rows] == [[3, 1]] * 3 + [[4, 3], [0, 0], [6, 1], [0, 0]]
    assert found["flow"]["succeeded"] == found["flow"]["total"] == 7
    assert [(row["member"][5], row["member"][3], row["state"]) for row in found["flow"]["callbacks"]] == [
        ("complete", [0, 3], "succeeded")
    ]
    assert '"page": 0' in found["flow"]["steps"][0]["result"]
    assert "s3cret" not in browser.get(f"/flows/{sent.id}").text
    assert browser.get("/flows", headers=JSON).json()["flows"][0]["id"] == sent.id


def test_the_tasks_of_a_flow_lead_to_it_and_a_dead_one_is_told(browse: Browse, client: Client) -> None:
    sent = group(fetch.bind(-1), fetch.bind(1), on_dead=Total()).enqueue()
    work(client)
    browser = browse()

    flow = read_flow(client, sent.id)
    assert flow is not None
    assert [step.state for step in flow.steps] == ["dead", "succeeded"]
    for step in (flow.steps[0], flow.callbacks[0]):
        assert browser.get(f"/tasks/{step.member.id}", headers=JSON).json()["flow"] == sent.id, step
    assert f"/flows/{sent.id}" in browser.get(f"/tasks/{sent.tasks[0].id}").text
    sent.tasks[0].requeue()
    assert [step.state for step in read_flow(client, sent.id).steps] == ["waiting", "succeeded"]  # type: ignore[union-attr]


def test_a_callback_that_ended_and_is_no_longer_kept_is_not_said_to_be_not_begun(
    browse: Browse, client: Client
) -> None:
    calls = {"on_success": Total(), "on_complete": Total(), "on_dead": Total()}
    sent = group(fetch.bind(1), fetch.bind(2), **calls).enqueue()

    def states() -> dict[str, str]:
        flow = read_flow(client, sent.id)
        assert flow is not None
        return {one.member.rule: one.state for one in flow.callbacks}

    assert set(states().values()) == {"not begun"}
    work(client)
    assert states() == {"success": "succeeded", "complete": "succeeded", "dead": "not begun"}
    for one in read_flow(client, sent.id).callbacks:  # type: ignore[union-attr]
        broker_of(client).run(command("DEL", keys_of(client).queue("flow-b").task(one.member.id), read=int))

    gone = "not begun, or no longer kept"
    assert states() == {"success": gone, "complete": gone, "dead": "not begun"}
    page = browse().get(f"/flows/{sent.id}").text
    assert page.count(f'<span class="badge {gone}">{gone}</span>') == 2
    assert not [one for one in read_flow(client, sent.id).callbacks if f"/tasks/{one.member.id}" in page]  # type: ignore[union-attr]


def test_a_flow_that_cannot_be_read_keeps_nobody_from_the_others(browse: Browse, client: Client, raw: Any) -> None:
    whole, broken = (chain(fetch.bind(n), Total()).enqueue() for n in range(2))
    tally = keys_of(client).queue("flow-a").join(broken.id)
    raw.delete(tally)
    raw.set(tally, "damage")

    assert {one.id: bool(one.problem) for one in recent_flows(client)} == {whole.id: False, broken.id: True}
    page = browse().get("/flows")
    assert page.status_code == 200
    assert "WRONGTYPE" in page.text


def test_older_flows_are_offered_where_there_are_any(browse: Browse, client: Client) -> None:
    browser = browse()
    for _ in range(20):
        chain(fetch.bind(1), Total()).enqueue()
    assert all(word not in browser.get("/flows").text for word in ("Older", "of the last 1,000 flows"))
    chain(fetch.bind(1), Total()).enqueue()

    pages = [browser.get(f"/flows?page={number}").text for number in (1, 2)]

    assert [("Newer" in text, "Older" in text) for text in pages] == [(False, True), (True, False)]
    assert "page 1 of 1" not in browser.get(f"/flows/{recent_flows(client)[0].id}").text


def test_a_flow_that_is_unknown_or_of_an_older_version_is_said_to_be(browse: Browse, client: Client, raw: Any) -> None:
    sent = chain(fetch.bind(1), Total()).enqueue()
    browser = browse()
    tally = keys_of(client).queue("flow-a").join(sent.id)
    raw.hdel(tally, "steps:0", "callbacks", "sent_ms")

    assert "Steps unknown" in browser.get(f"/flows/{sent.id}").text
    raw.delete(tally)
    assert browser.get(f"/flows/{sent.id}").status_code == 404
    assert browser.get("/flows/nothing").status_code == 404
    assert recent_flows(client) == []


def test_a_large_group_is_read_page_by_page_in_few_commands(browse: Browse, client: Client) -> None:
    sent = group(*(fetch.bind(n) for n in range(2500)), on_success=Total()).enqueue()
    browser = browse()
    commands: list[int] = []
    replies = broker_of(client)._replies
    broker_of(client)._replies = lambda calls, *rest: commands.append(len(calls)) or replies(calls, *rest)  # type: ignore[method-assign,func-returns-value]
    numbers: list[int] = []
    for page in (1, 50, 51, 125):
        commands.clear()
        browser.dashboard.live.forget()
        found = browser.get(f"/flows/{sent.id}?page={page}", headers=JSON).json()
        numbers += [row["number"] for row in found["flow"]["steps"]]
        assert all(row["state"] == "waiting" for row in found["flow"]["steps"])
        assert sum(commands) <= 50

    assert numbers == [*range(20), *range(980, 1020), *range(2480, 2500)]
    assert browser.get(f"/flows/{sent.id}?page=999", headers=JSON).json()["flow"]["steps"] == []


def teardown_module() -> None:
    for name in ("flow_fetch", "flow_total"):
        forget_job(name)
