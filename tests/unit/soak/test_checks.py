"""The rule by which a series counts as growing, and checks that get no answer."""

from pathlib import Path
from random import Random

import pytest

from jobrunner.client.client import Client
from jobrunner.errors import ServerUnavailable
from jobrunner.soak.checks import KEYS, MEMORY, SoakCheck, Tolerance, answered, equals, flat, of_history, slope

MIB = 1 << 20
TIMES = [float(at) for at in range(0, 3600, 10)]


def test_the_slope_of_a_line_with_outliers_is_that_of_the_line() -> None:
    points = [(at, 3 * at + (10_000 if at % 7 == 0 else 0)) for at in range(1, 600)]

    assert slope([(float(at), float(value)) for at, value in points]) == pytest.approx(3, abs=0.1)


def test_noise_bursts_and_a_start_that_warms_up_are_flat() -> None:
    draw = Random(1)
    bursts = {at: 30 * MIB for at in TIMES if at % 500 == 0}
    memory = [60 * MIB + min(at, 300) * 50_000 + draw.gauss(0, MIB) + bursts.get(at, 0) for at in TIMES]

    assert flat("memory", TIMES, memory, MEMORY).holds


def test_a_leak_is_not_flat() -> None:
    draw = Random(1)
    leak = [60 * MIB + at / 3600 * 20 * MIB + draw.gauss(0, MIB) for at in TIMES]

    found = flat("memory", TIMES, leak, MEMORY)

    assert found.holds is False
    assert found.bound.startswith("≤ 8.0 MiB")


def test_keys_that_grow_are_not_flat_and_those_that_fall_are() -> None:
    assert flat("keys", TIMES, [1000 + at for at in TIMES], KEYS).holds is False
    assert flat("keys", TIMES, [9000 - at for at in TIMES], KEYS).holds


def test_moments_that_were_not_measured_are_left_out_and_too_few_are_not_judged() -> None:
    some = [None if at % 20 else 5.0 for at in TIMES]

    assert flat("some", TIMES, some, Tolerance(amount=1, share=0)).holds
    assert flat("none", TIMES, [None] * len(TIMES), KEYS).holds is None
    assert flat("few", TIMES[:5], [1.0] * 5, KEYS).holds is None


def test_a_check_that_gets_no_answer_fails_and_spares_the_others(tmp_path: Path) -> None:
    def away() -> list[SoakCheck]:
        raise ServerUnavailable("the server is away")

    (found,) = answered("the queues", away)

    assert (found.name, found.value) == ("reasons why the queues cannot be checked", "the server is away")
    assert found.holds is False
    assert answered("the queues", lambda: [equals("lost", 0, 0)]) == [equals("lost", 0, 0)]
    with Client(f"unix://{tmp_path}/nothing", retry_timeout=0) as client:
        (found,) = of_history(client, tmp_path)
    assert (found.name, found.holds) == ("reasons why the history cannot be judged", False)
