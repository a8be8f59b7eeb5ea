"""Declarations of queues: what is refused, and where two of them meet. Nothing asks a server."""

from datetime import timedelta

import pytest

from jobrunner import Backoff, RateLimit, queue
from jobrunner.errors import DuplicateQueue, InvalidName, InvalidOption, UnknownOption
from jobrunner.jobs.declared_queues import declare_configured, declared_queues, forget_queue


def declared(name):
    return next(one for one in declared_queues() if one.name == name)


def test_a_declaration_has_checked_settings_and_its_place():
    made = queue("tenants", fair=True, rate=RateLimit(15, per=timedelta(hours=1)), history=timedelta(days=1))

    assert declared("tenants") is made
    assert made.place.startswith(f"{__name__}:")
    assert made.stored["fair"] == 1
    assert made.stored["history_ms"] == 86_400_000


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"max_inflights": 4}, UnknownOption, r"'max_inflights' of queue 'odd', tests\S+; did you mean 'max_inflight'"),
        ({"max_inflight": "4"}, InvalidOption, r"queue 'odd', tests\S+: max_inflight='4': give a whole number"),
        ({"fair": 1}, InvalidOption, "fair=1: give True or False"),
        ({"rate": 15}, InvalidOption, r"rate=15: give a RateLimit\("),
        ({"dead_letter_queue": "other"}, InvalidOption, "another queue of the pipeline"),
    ],
)
def test_wrong_settings_are_refused_where_they_are_declared(settings, error, message):
    with pytest.raises(error, match=message):
        queue("odd", **settings)
    assert "odd" not in {one.name for one in declared_queues()}


def test_names_are_checked_and_queues_of_pipelines_refused():
    with pytest.raises(InvalidName):
        queue("no name")
    with pytest.raises(InvalidOption, match=r"belongs to a pipeline.*pipeline\.declare\('raw', …\)"):
        queue("orders/raw", fair=True)


def test_the_same_declared_twice_is_allowed_and_other_settings_name_both_places():
    first = queue("twice", max_inflight=4, history=3600)
    queue("twice", history=timedelta(hours=1), max_inflight=4)
    with pytest.raises(DuplicateQueue) as refused:
        queue("twice", max_inflight=5, history=3600)

    assert first.place in str(refused.value)
    assert "max_inflight (4; 5)" in str(refused.value)
    assert "history" not in str(refused.value)
    assert declared("twice").settings["max_inflight"] == 4


def test_one_line_that_declares_a_queue_differently_is_refused():
    def declare(most):
        return queue("looped", max_inflight=most)

    declare(1)
    with pytest.raises(DuplicateQueue, match=r"max_inflight \(1; 2\)"):
        declare(2)


def test_a_module_that_is_loaded_again_replaces_its_declaration():
    for most in (1, 2):
        source = compile(f"queue('reloaded', max_inflight={most})", "reloaded.py", "exec")
        exec(source, {"queue": queue, "__name__": "reloaded"})

    assert declared("reloaded").settings == {"max_inflight": 2}


def test_a_setting_that_one_leaves_out_and_the_other_sets_to_its_default_differ():
    queue("defaults", max_size=None)
    with pytest.raises(DuplicateQueue, match=r"max_size \(None; not given\)"):
        queue("defaults")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """project(text): writes the tables of queues into the project's file, and declares them."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "pyproject.toml").write_text(text)
        declare_configured()

    return write


def test_a_table_of_the_file_declares_a_queue(project):
    project("""
        [tool.jobrunner.queues.tenants]
        fair = true
        rate = "15/1h"
        rate_per_partition = { max_tokens = 3, per = 60 }
        keepalive = 30
        history = "1d"
        max_size = "none"
        backoff = { base = 1, cap = 60 }
        [tool.jobrunner.queues."a.b"]
        max_attempts = 3
    """)

    made = declared("tenants")
    assert made.settings == {
        "fair": True, "rate": RateLimit(15, per=3600), "rate_per_partition": RateLimit(3, per=60), "keepalive": 30,
        "history": 86400.0, "max_size": None, "backoff": Backoff(base=1, cap=60),
    }  # fmt: skip
    assert made.place.startswith("[tool.jobrunner.queues.tenants] of /")
    assert declared("a.b").settings == {"max_attempts": 3}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("odd.max_inflights = 4", UnknownOption, r"'max_inflights' in \[.*queues.odd\] of .*toml; .*'max_inflight'"),
        ("odd.max_inflight = '4'", InvalidOption, r"queues.odd\] of .*pyproject.toml: max_inflight='4'"),
        ("odd.rate = 15", InvalidOption, r'rate = 15 in \[tool.jobrunner.queues.odd\] of .*: write "15/1h"'),
        ("odd.rate = '15 a day'", InvalidOption, r"'15 a day' is no rate; write tasks/interval"),
        ("odd.rate = {tokens = 1}", InvalidOption, r"rate = .*did you mean 'max_tokens'"),
        ("odd.history = 'long'", InvalidOption, r"history = 'long' .*'long' is no length of time"),
        ("odd.backoff = 5", InvalidOption, r"backoff = 5 .*give a table"),
        ("odd = 5", InvalidOption, r"queues.odd = 5 in .*pyproject.toml: give a table"),
        ("'no name'.fair = true", InvalidName, "no name"),
        ("'orders/raw'.fair = true", InvalidOption, "belongs to a pipeline"),
    ],
)
def test_a_wrong_table_names_file_key_and_remedy(project, text, error, message):
    with pytest.raises(error, match=message):
        project(f"[tool.jobrunner.queues]\n{text}")


def test_queues_must_be_tables(project):
    with pytest.raises(InvalidOption, match=r"queues = 5 in .*: give a table, \[tool.jobrunner.queues\]"):
        project("[tool.jobrunner]\nqueues = 5")


def test_code_and_file_may_declare_the_same_and_nothing_else(project):
    made = queue("shared", history=60)
    project('[tool.jobrunner.queues.shared]\nhistory = "1m"')
    assert declared("shared") is made
    with pytest.raises(DuplicateQueue, match=rf"by {made.place} and by \[tool.jobrunner.queues.shared\] of /.*history"):
        project('[tool.jobrunner.queues.shared]\nhistory = "2m"')


def test_a_module_that_is_loaded_after_the_file_is_compared_with_it(project):
    project('[tool.jobrunner.queues.late]\nhistory = "1m"')
    assert queue("late", history=60).code is not None
    forget_queue("late")
    project('[tool.jobrunner.queues.late]\nhistory = "1m"')
    with pytest.raises(DuplicateQueue, match=r"queues.late\] of /.* and by tests\S+ with"):
        queue("late", history=120)


def test_a_table_that_was_removed_declares_nothing_any_more(project):
    project("[tool.jobrunner.queues.gone]\nfair = true")
    project("[tool.jobrunner.queues.here]\nfair = true")
    assert [one.name for one in declared_queues() if one.code is None] == ["here"]
