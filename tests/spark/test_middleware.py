"""Middleware is around each batch of a station on Spark."""

from jobrunner import Backoff
from jobrunner.middleware import MiddlewareStack
from tests.support.waiting import wait_for


class Note:
    """Writes down what passes it."""

    def __init__(self, seen):
        self.seen = seen

    def on_enqueue(self, task, next):
        return next(task)

    def around(self, run, next):
        self.seen.append((run.job, run.queue, run.attempt, run.items))
        yield next(run)
        self.seen.append("over")


def test_a_batch_runs_within_the_middleware_and_an_error_passes_it(flights, drive, client):
    seen = []
    client._middleware = MiddlewareStack([Note(seen)])

    @flights.spark_station("clean", to="late", max_wait=0, schema="n int")
    def leave(df, spark):
        return df

    @flights.spark_station("late", to="on_time", max_wait=0, schema="n int")
    def fail(df, spark):
        raise ValueError("no column of that name")

    flights.declare("on_time")
    flights.push_many("clean", [{"n": n} for n in range(3)])
    drive("clean")
    drive("late", 1)
    assert seen == [("leave", "flights/clean", 1, 3), "over", ("fail", "flights/late", 1, 3)]


def test_an_error_behind_the_run_fails_the_batch(flights, drive, client):
    """The batch was decided by then: its items had succeeded, and what a transaction of the middleware wrote was lost.
    """
    written = []

    class Transaction:
        def around(self, run, next):
            yield next(run)
            if run.attempt == 1:
                raise OSError("the commit failed")

    client._middleware = MiddlewareStack([Transaction()])

    @flights.spark_sink("late", max_wait=0, schema="n int", backoff=Backoff(base=0.001))
    def store(df, spark, batch):
        written.append(df.count())

    flights.push_many("late", [{"n": n} for n in range(3)])
    assert drive("late", 1) == 1
    assert client.queue("flights/late").counts()["pending"] == 3

    wait_for(lambda: drive("late") > 0, timeout_s=20)

    assert client.queue("flights/late").counts()["pending"] == 0
    assert written == [3, 3]
