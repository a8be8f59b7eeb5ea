"""Declarations of queues: what is refused, and where two of them meet. Nothing asks a server."""

from datetime import timedelta

import pytest

from jobrunner import RateLimit, queue
from jobrunner.errors import DuplicateQueue, InvalidName, InvalidOption, UnknownOption
from jobrunner.jobs.declared_queues import declared_queues


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
        ({"max_inflights": 4}, UnknownOption, r"queue 'odd' at tests\S+: 'max_inflights'; did you mean 'max_inflight'"),
        ({"max_inflight": "4"}, InvalidOption, r"queue 'odd' at tests\S+: max_inflight='4': give a whole number"),
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
