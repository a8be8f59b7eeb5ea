"""The batch as a sink's function receives it, and the state that writers of this package share between its calls."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pyspark.sql import DataFrame

from jobrunner.client.batches import BatchLease
from jobrunner.errors import PipelineError
from jobrunner.settings import DEFAULT_PAYLOAD_LIMIT
from jobrunner.spark.row_errors import without_errors
from jobrunner.spark.station.misfits import InnerPayloads
from jobrunner.spark.station.staging import digests_of

_MOST_RUNS = 8
_IDS_AT_ONCE = 5_000


class BatchMembers:
    """The members of a batch by id and by digest, for the comparison of each of its sinks with its notes.

    Members are read once for all sinks; by then, the attempt takes no more members. Not thread-safe.
    """

    def __init__(self, lease: BatchLease) -> None:
        self._lease = lease
        self._read: tuple[list[str], Any] | None = None

    def read(self) -> tuple[list[str], Any]:
        """Returns (ids in queue order, an array of their 64-bit digests). Raises ServerError."""
        if self._read is None:  # no cached_property: that of Python 3.11 has one lock for all batches
            lease = self._lease
            ids = [one for first in range(0, lease.size, _IDS_AT_ONCE) for one in lease.members(first, _IDS_AT_ONCE)]
            self._read = ids, digests_of(one.encode() for one in ids)
        return self._read


class LeftOut:
    """Members left out of the DataFrame for this run of a sink's function, as their rows are in the sink already.

    Only a writer inside the function knows the path, and two paths may lack different members. So a writer that needs
    other rows than those of this run writes nothing, and the function is called again with the rows that it needs.
    """

    def __init__(self) -> None:
        self.members: frozenset[str] = frozenset()
        self._written: set[str] = set()
        self._wanted: list[frozenset[str]] = []
        self._runs = 0
        self.are_some_there = False
        """Whether any path has rows of members, so that its writer may have written nothing."""

    def fits(self, root: str, members: frozenset[str]) -> bool:
        """Whether the rows of this run are the rows to write to `root`, which has rows of `members` already."""
        if members == self.members:
            self._written.add(root)
            return True
        if root not in self._written and members not in self._wanted:
            self._wanted.append(members)
        return False

    def next_run(self) -> bool:
        """Whether the function is to be called again, now without the next set of `members`. Raises PipelineError."""
        if not self._wanted:
            return False
        self._runs += 1
        if self._runs > _MOST_RUNS:
            raise PipelineError("the paths that the sink writes to change from call to call; let them be the same")
        self.members = self._wanted.pop(0)
        return True


def _nothing() -> None:
    """The `renew` of a batch without a lease, as in a test of a sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatch:
    """A batch, as a sink receives it. `id` is the same for the same items at each attempt: rows written under it are
    written once."""

    id: str
    supersedes: tuple[str, ...]
    """Ids of the batches of which this batch is a part, after they failed and were split: rows written under these ids
    do not count, as this batch and the other parts write them again. Empty except for parts."""
    epoch: int
    """The number of times the batch was taken, from 1 on."""
    size: int
    renew: Callable[[], None] = field(default=_nothing, repr=False, compare=False)
    """Renews the lease. Raises BatchLost when another attempt may have begun: then write no more rows."""
    quarantine: Callable[[DataFrame], DataFrame] = field(default=without_errors, repr=False, compare=False)
    """Sets rows with errors aside: their items are dead when the batch is decided. Returns the other rows, to be
    written. `write_batch`, `write_table` and `write_sql` do so."""
    lease: BatchLease | None = field(default=None, repr=False, compare=False)
    """For writers of this package; None in a test of a sink."""
    left_out: LeftOut = field(default_factory=LeftOut, repr=False, compare=False)
    """For writers of this package: members whose rows this call leaves out."""
    members: BatchMembers | None = field(default=None, repr=False, compare=False)
    """For writers of this package; None in a test of a sink."""
    payload_limit: int = field(default=DEFAULT_PAYLOAD_LIMIT, repr=False, compare=False)
    """For chains: the limit of payloads that their Python stations return, in bytes."""
    inner: InnerPayloads = field(default_factory=InnerPayloads, repr=False, compare=False)
    """For chains: the schemas of its stations that a payload has fitted."""
    sink: str = ""
    """The sink of a chain that receives the batch; empty for a sink with a queue of its own."""

    may_repeat: bool = field(default=False, repr=False, compare=False)
    """Whether the batch may have come before although `epoch` is 1: a stream counts no attempts."""
    written: list[int] = field(default_factory=list, repr=False, compare=False)
    """For writers of this package that do not write through Spark: the number of rows in each write of this attempt."""
    places: set[tuple[object, ...]] = field(default_factory=set, repr=False, compare=False)
    """For writers of this package: places that this attempt, or this run of a streaming query, wrote to, see
    `has_written`."""
    is_kept: bool = field(default=False, repr=False, compare=False)
    """Whether the rows were computed and kept, so that a shuffle in front of the write would share no work."""

    def of_sink(self, name: str, *, is_kept: bool) -> Self:
        """The same batch for one of several sinks that write it, with separate ids: of two sinks that note ids in one
        place, the second would take the first sink's ids for its own."""
        sink = replace(self, sink=name, is_kept=is_kept)
        return replace(sink, id=sink.named(self.id), supersedes=tuple(map(sink.named, self.supersedes)))

    def named(self, batch_id: str) -> str:
        """The id under which this sink writes a batch that the server knows as `batch_id`."""
        return f"{self.sink}~{batch_id}" if self.sink else batch_id

    def lacks_rows(self, root: str, there: frozenset[str]) -> bool:
        """Whether the rows of this run are to be written to `root`, which has the rows of the members `there`. Else
        `root` has all rows, or the function is called again without those members."""
        self.left_out.are_some_there |= bool(there)
        return len(there) < self.size and self.left_out.fits(self.named(root), there)

    def note_written(self, place: str) -> None:
        """Records that the rows of this run are at `place`."""
        self.places.add(self._run_at(place))

    def has_written(self, place: str) -> bool:
        """Whether this run wrote to `place` before: a second write would replace the rows of the first, or be taken for
        the first and write nothing."""
        return self._run_at(place) in self.places

    def _run_at(self, place: str) -> tuple[object, ...]:
        return place, self.id, self.epoch, self.left_out.members

    @property
    def attempt(self) -> int:
        """An alias of `epoch`."""
        return self.epoch
