"""The loop owns thread, stop, crash report and back-off; the flag that wakes it."""

import itertools
import threading

import pytest
import structlog
from structlog.testing import capture_logs

from jobrunner import loop as module
from jobrunner.errors import ServerUnavailable
from jobrunner.loop import Complaints, Loop, Signal
from tests.support.stopped_clock import FakeClock, stopped
from tests.support.waiting import wait_for


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    structlog.reset_defaults()
    return stopped(monkeypatch, module)


class Step:
    """Fails while the test sets it to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.turns = 0

    def __call__(self) -> float:
        self.turns += 1
        if self.error is not None:
            raise self.error
        return 0.25


def test_a_turn_says_when_the_next_is() -> None:
    assert Loop("l", Step()).turn() == 0.25


def test_the_pause_after_errors_doubles_and_has_an_end(watch: FakeClock) -> None:
    loop = Loop("l", Step(ValueError("no")))
    pauses = [loop.turn() for _ in range(12)]
    assert 0.02 <= pauses[0] <= 0.05
    assert all(later > earlier * 0.9 for earlier, later in itertools.pairwise(pauses[:6]))
    assert all(1.5 <= pause <= 3.0 for pause in pauses[7:]), "so a server that is back is noticed within 3 s"


def test_a_good_turn_ends_the_pauses(watch: FakeClock) -> None:
    step = Step(ValueError("no"))
    loop = Loop("l", step)
    for _ in range(8):
        loop.turn()
    step.error = None
    assert loop.turn() == 0.25
    step.error = ValueError("again")
    assert loop.turn() <= 0.05


def test_an_error_is_told_once_in_ten_seconds_and_its_end_once(watch: FakeClock) -> None:
    step = Step(ValueError("no"))
    loop = Loop("l", step)
    with capture_logs() as said:
        for _ in range(25):
            loop.turn()
            watch.now += 1
        step.error = None
        loop.turn()
        loop.turn()
    assert [entry["event"] for entry in said] == ["loop failed"] * 3 + ["recovered"]
    assert said[0]["error"] == "ValueError: no"


def test_a_server_that_is_away_is_one_trouble_of_all_loops(watch: FakeClock) -> None:
    complaints = Complaints()
    steps = [Step(ServerUnavailable("away")) for _ in range(4)]
    loops = [Loop(str(n), step, complaints) for n, step in enumerate(steps)]
    with capture_logs() as said:
        for _ in range(25):
            for loop in loops:
                loop.turn()
            watch.now += 1
        for step in steps:
            step.error = None
        for loop in loops:
            loop.turn()
    assert [entry["event"] for entry in said] == ["loop failed"] * 3 + ["recovered"]


def test_a_server_is_back_when_it_is_for_the_last_of_the_loops_that_go_on(watch: FakeClock) -> None:
    complaints = Complaints()
    steps = [Step(ServerUnavailable("away")) for _ in range(3)]
    loops = [Loop(str(n), step, complaints) for n, step in enumerate(steps)]
    ended = Loop("ended", Step(ServerUnavailable("away")), complaints)
    with capture_logs() as said:
        for loop in (*loops, ended):
            loop.turn()
        ended.stop()
        ended.run()
        for loop, step in zip(loops, steps, strict=True):
            assert [entry["event"] for entry in said] == ["loop failed"]
            step.error = None
            loop.turn()
    assert [(entry["event"], entry["loop"]) for entry in said] == [("loop failed", "0"), ("recovered", "2")]


def test_a_turn_that_shows_nothing_of_the_server_is_no_recovery(watch: FakeClock) -> None:
    step, asked = Step(ServerUnavailable("away")), False
    loop = Loop("l", step, is_well=lambda: asked)
    with capture_logs() as said:
        for _ in range(3):
            step.error = ServerUnavailable("away")
            assert loop.turn() <= 0.05, "its pauses begin anew"
            step.error = None
            loop.turn()
        asked = True
        loop.turn()
    assert [(entry["event"], entry["failures"]) for entry in said] == [("loop failed", 1), ("recovered", 3)]


def test_a_server_that_comes_and_goes_is_told_of_once_in_ten_seconds(watch: FakeClock) -> None:
    step = Step()
    loop = Loop("l", step)
    with capture_logs() as said:
        for turn in range(18):
            step.error = ServerUnavailable("away") if turn % 2 else None
            loop.turn()
            watch.now += 0.5
    assert [entry["event"] for entry in said] == ["loop failed", "recovered"]


def test_another_error_is_told_beside_the_servers(watch: FakeClock) -> None:
    complaints = Complaints()
    with capture_logs() as said:
        Loop("a", Step(ServerUnavailable("away")), complaints).turn()
        Loop("b", Step(KeyError("a bug")), complaints).turn()
        Loop("c", Step(KeyError("another")), complaints).turn()
    assert len(said) == 3


def test_a_long_turn_is_busy_since_it_last_got_on(watch: FakeClock) -> None:
    found: list[float] = []
    got_on_at = -1.0

    def step() -> float:
        nonlocal got_on_at
        watch.now += 50.0
        found.append(loop.busy_s)
        got_on_at = watch.now
        watch.now += 20.0
        found.append(loop.busy_s)
        return 0.0

    loop = Loop("l", step, progressed_at=lambda: got_on_at)
    loop.turn()
    assert found == [50.0, 20.0]
    assert loop.busy_s == 0.0


def test_it_repeats_until_it_is_stopped() -> None:
    step = Step()
    loop = Loop("l", step)
    loop.start()
    wait_for(lambda: step.turns >= 2)
    assert loop.stop()
    turns = step.turns
    loop.wake()
    assert not loop.is_alive
    assert step.turns == turns


def test_a_wake_begins_the_next_turn() -> None:
    turned = threading.Semaphore(0)

    def step() -> float:
        turned.release()
        return 3600.0

    loop = Loop("l", step)
    loop.start()
    assert turned.acquire(timeout=30)
    loop.wake()
    assert turned.acquire(timeout=30)
    assert loop.stop()


def test_a_wake_during_a_turn_is_not_lost() -> None:
    turned = threading.Semaphore(0)

    def step() -> float:
        if not turned._value:  # type: ignore[attr-defined]
            loop.wake()
        turned.release()
        return 3600.0

    loop = Loop("l", step)
    loop.start()
    wait_for(lambda: turned._value == 2)  # type: ignore[attr-defined]
    assert loop.stop()


def test_stopping_tells_whether_the_turn_has_ended() -> None:
    begun, release = threading.Event(), threading.Event()

    def step() -> float:
        begun.set()
        return float(release.wait(20))

    loop = Loop("l", step)
    loop.start()
    assert begun.wait(30)
    assert not loop.stop(0.05)
    release.set()
    assert loop.stop()


def test_a_signal_is_taken_once() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    assert signal.wait(30)
    assert not signal.wait(0)
    assert not signal.wait(0.001)


def test_a_turn_here_is_taken_by_the_caller_and_leaves_the_loop_asleep() -> None:
    turns: list[str] = []

    def step() -> float:
        turns.append(threading.current_thread().name)
        return 60.0

    loop = Loop("l", step)
    loop.start()
    wait_for(lambda: turns and not loop._turning.locked())

    for _ in range(3):
        loop.turn_here()

    assert turns == ["jobrunner-l", *[threading.current_thread().name] * 3]
    assert loop.stop()
    assert len(turns) == 4


def test_a_turn_here_that_wants_the_next_one_sooner_wakes_the_loop() -> None:
    pauses = iter([60.0, 0.0])
    turns: list[str] = []

    def step() -> float:
        turns.append(threading.current_thread().name)
        return next(pauses, 60.0)

    loop = Loop("l", step)
    loop.start()
    wait_for(lambda: turns and not loop._turning.locked())

    loop.turn_here()

    wait_for(lambda: len(turns) == 3)
    assert turns == ["jobrunner-l", threading.current_thread().name, "jobrunner-l"]
    assert loop.stop()


def test_a_turn_here_beside_one_at_hand_is_the_next() -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    at_once: list[int] = []
    inside = 0

    def step() -> float:
        nonlocal inside
        inside += 1
        at_once.append(inside)
        begun.release()
        assert go_on.acquire(timeout=30)
        inside -= 1
        return 60.0

    loop = Loop("l", step)
    loop.start()
    assert begun.acquire(timeout=30)

    loop.turn_here()  # comes back at once
    go_on.release()
    assert begun.acquire(timeout=30)
    go_on.release()

    assert loop.stop()
    assert at_once == [1, 1]


def test_stopping_waits_for_a_turn_that_another_thread_has() -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    turns: list[int] = []

    def step() -> float:
        turns.append(1)
        if len(turns) == 2:
            begun.release()
            assert go_on.acquire(timeout=30)
        return 60.0

    loop = Loop("l", step)
    loop.start()
    wait_for(lambda: turns and not loop._turning.locked())
    other = threading.Thread(target=loop.turn_here)
    other.start()
    assert begun.acquire(timeout=30)

    assert not loop.stop(0.05)
    go_on.release()
    assert loop.stop()
    other.join(30)

    loop.turn_here()
    assert len(turns) == 2, "nothing begins after the end"
