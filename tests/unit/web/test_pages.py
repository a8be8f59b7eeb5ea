"""Every page: on a server where nothing is, it teaches; whatever names and payloads say, it is text."""

import re
import time
from datetime import UTC, datetime

import msgspec
import pytest

from jobrunner import Item, RateLimit, job
from jobrunner.broker.calls import events as event_calls
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.calls.leases import reserve
from jobrunner.client.client import broker_of, keys_of
from jobrunner.clock import utc_now
from jobrunner.inspector.jobs import job_views
from jobrunner.jobs.registry import forget
from jobrunner.periodic import PeriodicDefinition
from jobrunner.task import Task, new_id
from jobrunner.web.pages import all_pages
from jobrunner.web.rendering import limit
from jobrunner.worker.fetch.reserve_plan import LeaseNumbers

PLAIN = [page.path for page in all_pages() if "{" not in page.path]
JSON = {"accept": "application/json"}
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


@pytest.mark.parametrize("path", PLAIN)
def test_a_page_of_an_empty_server_is_there_and_teaches(browse, path):
    answer = browse().get(path)

    assert answer.status_code == 200
    assert 'class="empty"' in answer.text or path in ("/redis", "/audit")


@pytest.mark.parametrize("path", PLAIN)
def test_a_page_has_nothing_inline(browse, path):
    text = browse().get(path).text

    assert not re.search(r"<[^>]+\s(style|on\w+)=", text)
    assert not re.search(r"<style|<script(?![^>]*\bsrc=)", text)
    assert len(re.findall(r"<script[^>]*nonce=", text)) == text.count("<script")


@pytest.mark.parametrize("path", PLAIN)
def test_a_page_has_one_heading_a_title_and_marks_where_one_is(browse, path):
    text = browse().get(path).text

    assert text.count("<h1") == 1
    assert re.search(r"<title>\w+ · jobrunner</title>", text)
    assert text.count('aria-current="page"') == (path != "/sessions")  # in the menu only where people log in


@pytest.mark.parametrize(
    "path", ["/queues/nowhere", "/queues/a/b/c", "/tasks/none?queue=mail", "/tasks/none", "/pipelines/none"]
)
def test_what_is_not_there_is_said(browse, path):
    assert browse().get(path).status_code == 404


def test_a_payload_is_text_and_its_secrets_are_hidden(browse, client):
    client.queue("mail").push_many(
        [Item({"to": HOSTILE, "api_token": "sk-1234", "deep": [{"password": "x1y2"}]}, id="one")]
    )

    text = browse().get("/tasks/one?queue=mail").text

    assert "<script>alert" not in text
    assert "<img" not in text
    assert "alert(1)" in text
    assert "sk-1234" not in text
    assert "x1y2" not in text


def test_an_error_is_text_wherever_it_is_shown(browse, client):
    queue = client.queue("mail")
    queue.configure(max_attempts=1)
    queue.push({"n": 1})
    queue.reserve()[0].rollback(error=HOSTILE)

    browser = browse()
    for path in ("/", "/dead", "/tasks?state=dead", "/queues/mail", f"/tasks/{queue.ids('dead')[0]}"):
        text = browser.get(path).text
        assert "alert(" in text  # a group of errors has no digits
        assert "<script>alert" not in text
        assert "<img" not in text


def test_parameters_of_the_address_are_text(browse):
    text = browse().get("/tasks", params={"error": HOSTILE, "type": HOSTILE, "id": HOSTILE, "queue": HOSTILE}).text

    assert "<script>alert" not in text
    assert "<img" not in text


def test_a_program_gets_the_values_of_a_page(browse, client):
    client.queue("mail").push({"n": 1})

    found = browse().get("/queues", headers={"accept": "application/json"}).json()

    assert [(queue["name"], queue["waiting"]) for queue in found["queues"]] == [("mail", 1)]


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_theme_that_was_chosen_is_there_from_the_first_paint(browse, theme):
    browser = browse()
    browser.cookies["jobrunner_theme"] = theme

    assert f'data-theme="{theme}"' in browser.get("/").text


def test_a_theme_of_somebody_s_making_is_left_out(browse):
    browser = browse()
    browser.cookies["jobrunner_theme"] = "x><script>"

    assert "data-theme" not in browser.get("/").text


@pytest.mark.parametrize("after", ["x", "1.x", "-1.-1", "9" * 300, "0.999999999", "777.0"])
def test_a_place_to_go_on_from_of_somebody_s_making_is_no_error(browse, client, after):
    client.queue("mail").push(1)

    assert browse().get("/tasks", params={"after": after}).status_code == 200


def test_a_viewer_sees_no_button(browse, client):
    client.queue("mail").push(1)
    reads = browse(actions=False)

    for path in ("/queues", "/queues/mail", "/tasks"):
        assert "<form" in reads.get(path).text  # of the filters, or of the window of time
        assert 'method="post"' not in reads.get(path).text


def test_the_overview_tells_what_died_and_of_what(browse, client):
    queue = client.queue("mail")
    queue.configure(max_attempts=1)
    queue.push({"n": 1})
    queue.reserve()[0].rollback(error="the moon was full")

    text = browse().get("/").text

    assert "Failing jobs" in text
    assert "the moon was full" in text


def test_a_task_page_shows_the_frames_of_the_job_first_and_keeps_the_whole_text(browse, client):
    frame = '  File "{}", line 7, in {}\n    call()'
    ours = frame.format("/venv/lib/python3.12/site-packages/jobrunner/worker/run/runner.py", "run")
    theirs = frame.format("/srv/app/jobs.py", "send")
    error = "\n".join(["ValueError: no", "Traceback (most recent call last):", ours, theirs, "ValueError: no"])
    queue = client.queue("mail")
    queue.configure(max_attempts=1)
    queue.push({}, id="broken")
    queue.reserve()[0].rollback(error=error)

    text = browse().get("/tasks/broken?queue=mail").text

    brief, _, whole = text.partition("<details><summary>The whole text")
    assert "/srv/app/jobs.py" in brief
    assert "runner.py" not in brief.partition("<h2>Last error</h2>")[2].partition("<pre")[2]
    assert "runner.py" in whole.partition("</details>")[0]


def test_the_pending_tasks_of_the_overview_add_up(browse, client):
    client.queue("mail").push_many(range(8))
    client.queue("mail").reserve(8)
    said = {"host": "h", "queues": "mail", "concurrency": 16, "executing": 1, "fetched": 5, "in_hand": 6,
            "at": round(time.time() * 1000)}  # fmt: skip
    broker_of(client).run(leader_calls.announce(keys_of(client), "h.1.00c0de", said, ttl_ms=60_000))

    text = re.sub(r"<[^>]*>", "", browse().get("/").text)

    assert "1 running in 16 slots, 5 fetched, 2 not reported by workers" in text


def count(client, queue, job, **changes):
    fields = {f"{queue} {job} {what.replace('__', ':')}": by for what, by in changes.items()}
    broker_of(client).run_many(stats_calls.observe(keys_of(client), time.time() * 1000, "w1", 1, fields))


def test_what_failed_in_the_window_that_is_shown_is_told_beside_what_is_dead_now(browse, client):
    for _ in range(2):
        client.enqueue(Task(id=new_id("mail"), queue="mail", type="send", payload=b"{}", max_attempts=1))
        client.queue("mail").reserve()[0].rollback(error="ValueError: no")
    count(client, "mail", "send", succeeded=4, failed=3000, dead=1277)

    assert 'data-name="Failed">3,000</td><td class="n" data-name="Dead now">2</td>' in browse().get("/").text


def test_a_finding_leads_to_what_it_is_about(browse, client):
    client.queue("news").push(1)
    client.queue("mail").push(1)
    count(client, "mail", "send", succeeded=4, failed=30)

    text = browse().get("/").text

    assert "send of mail: 30 of 34 attempts failed lately" in text
    assert 'href="/dead?queue=mail&amp;job=%3Dsend">Errors of send</a>' in text
    assert 'href="/queues/mail">Open mail</a>' in text


def test_a_search_for_an_error_shows_the_errors_of_tasks_that_are_tried_again(browse, client):
    client.queue("mail").push({"n": 1})
    client.queue("mail").reserve()[0].rollback(delay=60, error="KeyError: 'currency'")

    assert "KeyError: &#39;currency&#39;" in browse().get("/tasks?queue=mail&error=%3A").text


def test_the_queues_tell_their_limits_and_their_course(browse, client):
    client.queue("mail").push(1)
    client.queue("mail").configure(
        max_inflight=7, max_size=5000, rate=RateLimit(max_tokens=30, interval=1, interval_unit="MINUTES")
    )
    count(client, "mail", "send", succeeded=4)

    text = browse().get("/queues").text

    assert [said for said in ("7 at once", "30 a minute", "size 5,000") if said not in text] == []
    assert "tasks that left mail by minute of the last hour" in text


def test_a_queue_tells_how_far_its_limits_are_used(browse, client, clock):
    clock.set()
    queue = client.queue("mail")
    queue.configure(max_inflight=4, max_size=10, rate=RateLimit(max_tokens=6, interval=1, interval_unit="MINUTES"))
    queue.push_many(range(10))
    queue.reserve(3)

    def badges():
        text = browse().get("/queues/mail").text
        return re.findall(r'<span class="badge (\w+)">(\d+ of \d+ used [a-z ]+)</span>', text)

    assert badges() == [("plain", "3 of 4 used in flight"), ("plain", "3 of 6 used of the rate"),
                        ("plain", "7 of 10 used of the size")]  # fmt: skip
    queue.reserve(3)
    queue.push_many(range(3))
    assert badges()[0] == ("warn", "4 of 4 used in flight")
    assert badges()[2] == ("plain", "9 of 10 used of the size")
    clock.advance(10_000)
    assert badges()[1] == ("plain", "3 of 6 used of the rate"), "a token flows back in ten seconds"


def test_a_queue_without_limits_says_nothing_of_their_use(browse, client):
    client.queue("mail").push(1)

    assert "used of the" not in browse().get("/queues/mail").text


def test_a_queue_tells_times_by_job(browse, client):
    client.queue("mail").push(1)
    count(client, "mail", "send", succeeded=10, run__8=10, wait__4=10)

    row = re.search(r'<tr data-key="mail send">.*?</tr>', browse().get("/queues/mail").text, re.DOTALL).group()

    assert re.findall(r'data-name="(\w+ p\d+)">[\d.]+ m?s</td>', row) == [
        "Run p50", "Run p95", "Run p99", "Wait p50", "Wait p95", "Wait p99",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (RateLimit(max_tokens=30, interval=1, interval_unit="MINUTES"), "30 a minute"),
        (RateLimit(max_tokens=1500, interval=1, interval_unit="HOURS"), "1,500 an hour"),
        (RateLimit(max_tokens=15, interval=2, interval_unit="SECONDS"), "15 in 2 seconds"),
    ],
)
def test_a_limit_is_told_in_words(rate, said):
    assert limit(rate) == said


def test_the_worker_that_holds_a_task_is_named_on_its_page_and_among_the_workers(browse, client):
    worker = "ada.77.00c0de"
    client.queue("mail").push({"n": 1}, id="one")
    broker_of(client).run(reserve(keys_of(client).queue("mail"), 1, token=LeaseNumbers(worker).first_of(1)))
    began = b'[["mail","one","Send",1,1700000000000]]'
    said = {"host": "ada", "pid": 77, "queues": "mail", "running": began}
    broker_of(client).run(leader_calls.announce(keys_of(client), worker, said, ttl_ms=60_000))

    browser = browse()
    task, workers = browser.get("/tasks/one?queue=mail").text, browser.get("/workers").text

    link = f'href="/workers?at={worker}#worker-{worker}"'
    assert "Held by" in task
    assert link in task
    assert link in workers[workers.index('id="running"') :]
    assert f'id="worker-{worker}"' in workers


def test_a_task_in_nobody_s_hands_is_held_by_none(browse, client):
    client.queue("mail").push({"n": 1}, id="one")

    assert "Held by" not in browse().get("/tasks/one?queue=mail").text


def test_events_are_listed_newest_first_by_kind_over_all_that_are_kept(browse, client, raw):
    keys = keys_of(client)
    run = broker_of(client).run_many
    run([event_calls.note(keys, "worker_started", worker="host.1.00c0de", release=HOSTILE)])
    error = "password=hunter2"
    died = [event_calls.note(keys, "task_died", queue="mail", task=f"t{n}", error=error) for n in range(130)]
    run([*died, event_calls.note(keys, "queue_paused", queue="mail")])

    page = browse().get("/events", headers=JSON).json()
    older = browse().get(f"/events?before={page['onward']}", headers=JSON).json()
    started = browse().get("/events?kind=worker_started", headers=JSON).json()

    assert [one["kind"] for one in page["events"][:2]] == ["queue_paused", "task_died"]
    assert (len(page["events"]), len(older["events"]), older["onward"]) == (100, 32, "")
    assert [one["worker"] for one in started["events"]] == ["host.1.00c0de"]
    text = browse().get("/events").text
    assert "hunter2" not in text
    assert HOSTILE not in browse().get("/events?kind=worker_started").text
    for odd in ("?before=nothing", "?kind=moon_rose", f"?before={'9' * 18}-0"):
        assert browse().get(f"/events{odd}").status_code == 200


def test_a_plot_marks_when_a_release_was_first_seen(browse, client):
    keys, now_ms = keys_of(client), round(time.time() * 1000)
    for release, at_ms in (("1.4.1", now_ms - 86_400_000), ("1.4.2", now_ms), (HOSTILE, now_ms), ("1.4.2", now_ms + 9)):
        broker_of(client).run_many(event_calls.note_release(keys, release, at_ms))
    client.queue("mail").push(1)

    text = browse().get("/").text

    assert "release 1.4.2" in text
    assert "release 1.4.1" not in text
    assert HOSTILE not in text
    assert broker_of(client).run(event_calls.releases(keys, since_ms=now_ms)) == {"1.4.2": now_ms, HOSTILE: now_ms}


def test_the_page_of_workers_tells_running_from_fetched_and_the_release(browse, client):
    client.queue("mail").push(1)
    said = {"host": "h", "queues": "mail", "concurrency": 8, "executing": 8, "fetched": 6, "in_hand": 14,
            "release": "1f2e3d4c5b6a79880716253443526170deadbeef", "at": round(time.time() * 1000)}  # fmt: skip
    broker_of(client).run(leader_calls.announce(keys_of(client), "h.1.00c0de", said, ttl_ms=60_000))

    text, values = browse().get("/workers").text, browse().get("/workers", headers=JSON).json()

    assert "8 running in 8 slots, 6 fetched" in text
    assert "14" not in text.partition('id="found"')[2].partition("</span>")[0]
    assert ">1f2e3d4c5b<" in text
    assert (values["executing"], values["fetched"], values["slots"]) == (8, 6, 8)
    assert values["workers"][0]["release"] == "1f2e3d4c5b6a79880716253443526170deadbeef"


def test_the_ticks_of_all_jobs_are_listed_the_latest_first_with_their_tasks(browse, client, raw):
    definitions = {}
    for name, ticks in (("Nightly", "3000000,fired,n-mail;1000000,disabled,"), ("Hourly", "2000000,skipped,")):
        job = PeriodicDefinition(name=name, queue="mail", schedule={"every": 60}, payload=b"{}", catch_up="last",
                                 overlap="skip", jitter=0.0)  # fmt: skip
        definitions[name] = msgspec.json.encode(job)
        raw.hset(keys_of(client).queue("mail").periodic(name), "recent", ticks)
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), definitions))

    text = browse().get("/periodic").text.partition("Last ticks")[2]

    pattern = r'<td class="lead">(\w+)</td>.*?<time[^>]*datetime="([^"]+)".*?>(fired|skipped|disabled)</span>'
    rows = re.findall(pattern, text)
    assert [(name, outcome) for name, _, outcome in rows] == [
        ("Nightly", "fired"), ("Hourly", "skipped"), ("Nightly", "disabled"),
    ]  # fmt: skip
    assert rows[0][1].startswith("1970-01-01T00:50:00")
    assert "/tasks/n-mail?queue=mail" in text


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "1" + "0" * 400])
def test_the_page_of_a_task_with_damaged_progress_is_there(browse, client, raw, number):
    task = client.queue("mail").push(1)
    raw.hset(keys_of(client).queue("mail").task(task), "progress", f'{{"done": {number}, "total": 7}}')

    assert browse().get(f"/tasks/{task}").status_code == 200


def test_the_page_of_workers_names_the_fullest_queues_without_one_and_counts_the_others(browse, client):
    for number in range(7):
        client.queue(f"idle-{number}").push_many(range(number + 1))

    text, values = browse().get("/workers").text, browse().get("/workers", headers=JSON).json()

    assert re.findall(r"No worker serves (idle-\d)", text) == ["idle-6", "idle-5", "idle-4", "idle-3", "idle-2"]
    assert "2 more queues with tasks to do have no worker" in text
    assert len(values["unserved"]) == 7


def test_a_duration_of_a_task_has_a_unit_for_people(browse, client, raw):
    client.enqueue(Task(id="t", queue="mail", payload=b"{}", keepalive_ms=300_000))
    raw.hset(keys_of(client).queue("mail").task("t"), "run_ms", "damaged")
    browser = browse()

    facts = browser.get("/tasks/t?queue=mail", headers=JSON).json()["facts"]

    text = browser.get("/tasks/t?queue=mail").text
    assert "<dt>keepalive</dt><dd>5 min</dd>" in text
    assert "<dt>run ms</dt><dd>damaged</dd>" in text
    assert dict(facts)["keepalive ms"] == "300000", "programs read the number"


@pytest.mark.parametrize("fields", [{}, {"disabled": 1}])
def test_a_periodic_job_whose_tick_no_leader_fires_is_overdue(browse, client, raw, fields):
    job = PeriodicDefinition(name="Nightly", queue="mail", schedule={"every": 3600}, payload=b"{}", catch_up="last",
                             overlap="skip", jitter=0.0)  # fmt: skip
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), {"Nightly": msgspec.json.encode(job)}))
    state = {"last": round((utc_now().timestamp() - 3700) * 1000), **fields}
    raw.hset(keys_of(client).queue("mail").periodic("Nightly"), mapping=state)

    assert (">overdue</span>" in browse().get("/periodic").text) == (not fields)


def test_a_periodic_job_that_was_added_names_its_job(browse, client):
    @job(name="pages.report", queue="reports")
    def report(customer: str) -> None: ...

    forget("pages.report")
    for customer in ("acme", "bolt"):
        client.add_periodic(customer, report.bind(customer), every=3600)

    text = browse().get("/periodic").text
    assert text.count("runs pages.report · added at run time") == 2
    assert [(view.name, view.schedule) for view in job_views(client)] == [("pages.report", "2 schedules")]


def test_a_periodic_job_that_has_ended_says_so(browse, client):
    @job(name="pages.report", queue="reports")
    def report(customer: str) -> None: ...

    forget("pages.report")
    client.add_periodic("acme", report.bind("acme"), every=3600, end=datetime(2020, 1, 1, tzinfo=UTC))

    text = browse().get("/periodic").text
    assert '<span class="zero">ended</span>' in text
    assert "every hour until 2020-01-01 00:00 UTC" in text


def test_a_thousand_workers_are_a_page_of_each_hundred_and_a_link_to_one_opens_its_page(browse, client):
    def announce(name, queues):
        said = {"host": name, "pid": 7, "queues": queues}
        return leader_calls.announce(keys_of(client), f"{name}.7.00c0de", said, ttl_ms=60_000)

    calls = [announce(f"host-{n:03}", "mail" if n % 2 else "work") for n in range(250)]
    broker_of(client).run_many(calls)
    browser = browse()

    def shown(query):
        return re.findall(r'id="worker-host-(\d+)', browser.get(f"/workers{query}").text)

    assert shown("") == [f"{n:03}" for n in range(100)]
    assert shown("?start=200") == shown("?start=9999") == [f"{n:03}" for n in range(200, 250)]
    assert "150" in shown("?at=host-150.7.00c0de")
    assert "201–250 of 250" in browser.get("/workers?start=200").text
    assert shown("?q=HOST-013") == ["013"]
    assert len(shown("?q=mail&start=100")) == 25
    assert "No worker has that" in browser.get("/workers?q=nowhere").text
    assert len(browser.get("/workers", headers=JSON).json()["workers"]) == 250


def test_a_page_behind_the_last_is_the_last(browse, client):
    client.queue("mail").push(1)

    assert "mail" in browse().get("/queues?start=500").text
