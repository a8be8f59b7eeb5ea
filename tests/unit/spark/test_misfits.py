"""Which items of a chain may die of payloads that do not fit the schema of an inner station."""

from jobrunner.spark.station.failure_history import PATIENT_WITH
from jobrunner.spark.station.misfits import InnerPayloads

MANY = [f"i{at}" for at in range(PATIENT_WITH + 1)]


def test_a_few_items_may_die_and_the_same_items_count_once():
    inner = InnerPayloads(lambda: False)
    for _ in range(3):
        assert inner.may_bury("late", MANY[:-1])
    assert not inner.may_bury("late", MANY[-1:])
    assert inner.may_bury("on_time", MANY[:-1]), "another station"


def test_the_last_items_of_a_queue_may_die():
    left = [True]
    inner = InnerPayloads(lambda: left[0])
    assert inner.may_bury("late", MANY)
    left[0] = False
    assert not inner.may_bury("late", MANY)


def test_a_station_that_a_payload_has_fitted_is_not_asked_about_again():
    inner = InnerPayloads(lambda: False)
    assert not inner.may_bury("late", MANY)
    inner.saw_fit("late")
    assert inner.without_fit(["late", "on_time"]) == ["on_time"]
