"""Pushes the flights into the pipeline from a thread of its own, while stations already work on the first of them."""

from collections.abc import Iterator
from itertools import takewhile
from threading import Event, Thread
from types import TracebackType
from typing import Self

from jobrunner import Item
from jobrunner.etl import Pipeline
from jobs_example import dataset
from jobs_example.demos.flights.damage import Damage
from jobs_example.demos.flights.published import Notes


class Feed:
    """Pushes the flights of a month, or of the year, with damaged rows among them; leaving the `with` ends it."""

    def __init__(self, pipeline: Pipeline, month: int | None, damage: Damage, notes: Notes) -> None:
        self.pushed = 0
        """Items that the server has confirmed."""
        self._pipeline = pipeline
        self._month = month
        self._damage = damage
        self._notes = notes
        self._over = Event()
        self._thread = Thread(target=self._push, name="feed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether it still has something to push."""
        return self._thread.is_alive()

    def _push(self) -> None:
        def note(pushed: int) -> None:
            self.pushed = pushed

        self._pipeline.push_all("raw", takewhile(lambda _: not self._over.is_set(), self._items()), progress=note)

    def _items(self) -> Iterator[Item]:
        for row in dataset.raw_flights(self._month):
            self._notes.add(row)
            yield Item(row, id=dataset.flight_id(row))
            if bad := self._damage.of(row):
                yield Item(bad.row, id=bad.id)
