"""Every exception jobrunner raises, in one tree.

::

    JobrunnerError
    ├── UsageError (ValueError)         an invalid request of the caller; nothing was written
    │   ├── UnknownOption               an unknown option; the message names the nearest known option
    │   ├── InvalidName                 a queue, job, task id or prefix with characters that are not allowed
    │   ├── InvalidOption               a known option with a value outside its range
    │   │   └── NaiveDatetime           an instant without a time zone
    │   ├── ParameterError              a job parameter that is wrong, missing or unknown
    │   ├── PayloadTooLarge             more bytes than the payload limit
    │   ├── ResultTooLarge              more bytes than the result limit
    │   ├── DuplicateJob                two different jobs declared under one name
    │   ├── DuplicateQueue              a queue declared twice with different settings
    │   ├── UnknownJob                  a job name that no loaded module declares
    │   ├── ModuleNotLoadable           a module with jobs that cannot be imported
    │   ├── PipelineError               a pipeline whose stations do not fit together, or a station's wrong result
    │   │   └── StationError            the return value of a station's function is wrong for any item
    │   │       ├── TableError          a table of a lakehouse or of SQL is away, or has other columns
    │   │       └── FolderError         the folder of a sink cannot be written to: a full disk, no rights, no folder
    │   ├── SparkMissing                PySpark is not installed
    │   ├── JavaMissing                 no Java that Spark supports on this machine
    │   ├── EncryptionMissing           the package that encrypts payloads is not installed
    │   ├── FsspecMissing               the package that a payload store needs is not installed
    │   ├── MicroBatchChanged           a micro-batch has the number of another micro-batch that was written
    │   ├── UnknownMember               a row of a batch for an item that is none of its members
    │   └── ClientClosed                an operation on a client after close()
    ├── ServerError                     the server did not carry out a request
    │   ├── ServerUnavailable           the server cannot be reached
    │   │   └── BufferFull              the server cannot be reached, and the buffer of this process is full
    │   ├── OutcomeUnknown              the reply was lost after the request was sent: applied or not
    │   ├── ServerRefused               the server answered with an error (ACL, READONLY, LOADING, ...)
    │   │   └── ServerFull              the server is at maxmemory; nothing was written
    │   ├── DamagedData                 data on the server cannot be read
    │   ├── UnsafeServer                the server may lose tasks: an evicting maxmemory-policy, or too old
    │   ├── NewerFormat                 a newer version wrote data that this version cannot read
    │   ├── OlderFormat                 an older version wrote data that this version cannot read
    │   └── EmbeddedServerError         the private server of this folder cannot be started or reached
    ├── EncryptionError                 a payload or result that cannot be decrypted; nothing was changed
    │   ├── EncryptionKeyMissing        this client does not have the key of the payload or result
    │   ├── DecryptionFailed            the payload or result was changed, or is that of another task
    │   └── NotEncrypted                a plain payload or result, and this client requires encryption
    ├── PayloadStoreError               a payload cannot be written to, or read from, a payload store
    │   ├── PayloadStoreUnavailable     the store cannot be reached or used by this process; another may
    │   ├── PayloadObjectMissing        the object of a task is not there
    │   └── PayloadObjectChanged        the object, or the reference to it, was changed
    ├── HistoryTrimmed                  finished tasks were deleted before a stream had read them
    ├── QueueFull                       the queue has reached its max_size; nothing was added
    ├── WorkerBroken                    a job closed file descriptors, or ended threads, of its worker; the worker ended
    ├── QueueNotEmpty                   the queue holds tasks, or has a periodic job: it was not deleted
    ├── DriverFailed                    the driver that serves a queue cannot continue; the worker ended
    ├── DuplicateTask                   an equal task, or a task with this id, exists already; nothing was added
    ├── LeaseError                      a report on a lease that is over; nothing was changed
    │   ├── NotReserved                 the task has no lease
    │   ├── LeaseLost                   another attempt holds the task, or it was moved
    │   ├── ReportUnknown (OutcomeUnknown)  the reply to a report was lost; most likely it was taken
    │   ├── ReportUnsent (ServerUnavailable)  the node of the task's partition is away
    │   ├── TargetFull (QueueFull)      the target queue of a move is full; the item stays leased
    │   ├── TooManyHops (UsageError)    an item was moved as often as is allowed; it stays leased
    │   ├── BatchLost                   another driver holds the batch, its lease ended, or it is decided
    │   └── ReportsRefused (ExceptionGroup)  some reports of a batch were refused, the others were taken
    ├── MiddlewareError                 a middleware did not call `next` once, or cannot be around this job
    └── TaskError                       an error about one task
        ├── TaskFailed                  the task is dead; the message has its last error
        ├── TaskCancelled               the task was cancelled before it finished
        ├── TaskTimeout (TimeoutError)  result(timeout=...) ran out; the task continues
        ├── TaskGone                    no such task: it never existed, or is no longer kept
        ├── AttemptTimeout              an attempt ran longer than its job's `timeout`
        ├── AttemptCancelled            the asyncio task of an attempt was cancelled by a job
        └── AttemptCrashed              the process or the event loop of an attempt died
"""

from typing import Self


class JobrunnerError(Exception):
    """Root of every error that jobrunner raises."""


class UsageError(JobrunnerError, ValueError):
    """An invalid request of the caller; nothing was written."""


class UnknownOption(UsageError):
    """An unknown option; the message names the nearest known option."""


class InvalidName(UsageError):
    """A queue, job, task id or prefix with characters that are not allowed."""


class InvalidOption(UsageError):
    """A known option with a value outside its range."""


class NaiveDatetime(InvalidOption):
    """An instant without a time zone."""


class ParameterError(UsageError):
    """A job parameter that is wrong, missing or unknown; the message names its path, value and type."""


class PayloadTooLarge(UsageError):
    """More bytes than the payload limit of the client."""


class ResultTooLarge(UsageError):
    """More bytes than the result limit of the client."""


class DuplicateJob(UsageError):
    """Two different jobs declared under one name."""


class DuplicateQueue(UsageError):
    """A queue that is declared twice with different settings."""


class UnknownJob(UsageError):
    """A job name that no loaded module declares."""


class ModuleNotLoadable(UsageError):
    """A module with jobs that cannot be imported."""


class SparkMissing(UsageError):
    """PySpark, or a package that a part of PySpark needs, is not installed; the message has the command to install it.
    """


class JavaMissing(UsageError):
    """No Java that Spark supports is installed; the message has the command to install it."""


class EncryptionMissing(UsageError):
    """The package that encrypts payloads is not installed; the message has the command to install it."""


class FsspecMissing(UsageError):
    """The package that a payload store needs is not installed; the message names it, or the command to install it."""


class PipelineError(UsageError):
    """The stations of a pipeline do not fit together, or the return value of a station does not fit its links."""


class StationError(PipelineError):
    """The return value of a station's function fits none of its links, for any item."""


class TableError(StationError):
    """A table of a lakehouse or of a SQL database cannot take the rows: the columns do not fit, or the table, its
    catalog or its server cannot be reached.

    Nothing was committed, and no failure is counted: the station pauses, and continues once the cause is fixed.
    """

    may_be_of_rows = False
    """Whether rows may be the cause, as when a library refused a commit: then batches are split to find good rows."""


class FolderError(StationError):
    """The folder of a sink cannot be written to: a full or read-only disk, no rights, or a path that is no folder.

    Nothing was written, and no failure is counted: the station pauses, and continues once the cause is fixed.
    """


class MicroBatchChanged(UsageError):
    """A micro-batch has the number of another micro-batch, which was written before. Nothing was added.

    In a queue or a table of a lakehouse the written micro-batch has another number of rows; in a folder or a table of a
    SQL database there is a later one: the checkpoint is older than these, or was copied. In all but a queue it may also
    be of a query with another checkpoint.
    """

    @classmethod
    def of_another_query(cls, batch_id: str) -> Self:
        """The error for a written micro-batch of another query: the rows would count as repeated, or replace its rows.
        """
        return cls(
            f"micro-batch {batch_id!r} was written by a query with another checkpoint, so nothing is written now: with "
            "a new checkpoint numbers begin at 0 again, so give micro_batch(name, number) another name"
        )

    @classmethod
    def of_other_rows(cls, batch_id: str, place: str, before: int, rows: int) -> Self:
        """The error for a written micro-batch with another number of rows: they would count as repeated."""
        return cls(
            f"micro-batch {batch_id!r} was written to {place} before with {before} rows, and has {rows} now; nothing "
            "is added: the checkpoint is older than the table (restored or copied), so begin with a new one and give "
            "micro_batch(name, number) another name; or the rows come of a table that has changed, or of history that "
            "was trimmed"
        )

    @classmethod
    def of_an_old_checkpoint(cls, batch_id: str, place: str) -> Self:
        """The error for a written micro-batch that is not the last one: its rows may be in later ones, too."""
        return cls(
            f"micro-batch {batch_id!r} was written to {place} before, and a later one, too; nothing is written: the "
            "checkpoint is older than these rows (restored or copied), so begin with a new one and give "
            "micro_batch(name, number) another name"
        )


class UnknownMember(UsageError):
    """A row of a batch for an item that is none of its members; nothing was staged."""


class ClientClosed(UsageError):
    """An operation on a client after close()."""


class ServerError(JobrunnerError):
    """The server did not carry out a request."""


class ServerUnavailable(ServerError):
    """The server cannot be reached; nothing was sent, or only calls that have no further effect when repeated."""


class BufferFull(ServerUnavailable):
    """The server cannot be reached, and the buffer of this process is full; the tasks of the call were not taken."""


class OutcomeUnknown(ServerError):
    """The connection broke after the command was sent: it was applied or not. If the call enqueues many tasks, some may
    have been added."""


NO_ANSWER = (ServerUnavailable, OutcomeUnknown)
"""The errors of a server that is away. On a cluster that is one node, and calls on the others may be answered."""


class ServerRefused(ServerError):
    """The server answered with an error, which the message contains."""


class ServerFull(ServerRefused):
    """The server is at maxmemory; nothing was written."""


class DamagedData(ServerError):
    """Data on the server cannot be read: another program changed it; the message names the key."""


class UnsafeServer(ServerError):
    """The server may lose tasks: its maxmemory-policy evicts keys, or it is too old for the scripts."""


class NewerFormat(ServerError):
    """A newer version of jobrunner wrote data below this prefix that this version cannot read; nothing was changed."""


class OlderFormat(ServerError):
    """An older version of jobrunner wrote data below this prefix that this version cannot read; nothing was changed."""


class EmbeddedServerError(ServerUnavailable):
    """The private server of a folder cannot be started or reached."""


class EncryptionError(JobrunnerError):
    """A payload or result is encrypted or signed and cannot be decrypted or verified; nothing was changed or lost."""


class EncryptionKeyMissing(EncryptionError):
    """The key of an encrypted or signed payload or result is not among the `payload_keys` of this client."""


class DecryptionFailed(EncryptionError):
    """A payload or result was changed, is that of another task, or has another key of the same name."""


class NotEncrypted(EncryptionError):
    """A payload or result is neither encrypted nor signed, and this client has `require_encryption`."""


class PayloadStoreError(JobrunnerError):
    """A payload cannot be written to, or read from, the payload store; nothing was changed or lost on the server."""


class PayloadStoreUnavailable(PayloadStoreError):
    """The store cannot be reached, or is forbidden for this process, or not configured; the message says which."""


class PayloadObjectMissing(PayloadStoreError):
    """The object with the payload of a task is not in the store; the message names its URL and the task."""


class PayloadObjectChanged(PayloadStoreError):
    """The object with a payload, or the reference to it, was changed: size, checksum or name do not fit."""


class HistoryTrimmed(JobrunnerError):
    """Finished tasks were deleted before a stream had read them; the message says how to continue."""


class QueueFull(JobrunnerError):
    """The queue has reached its max_size; nothing was added to it.

    `queue` is its name, `max_size` its capacity (in a queue with partitions the part of one partition), and `wanted`
    the number of tasks in the call. For a move (TargetFull) `max_size` is None.
    """

    def __init__(self, message: str, wanted: int = 1, *, queue: str = "", max_size: int | None = None) -> None:
        super().__init__(message)
        self.wanted = wanted
        self.queue = queue
        self.max_size = max_size


class WorkerBroken(JobrunnerError):
    """A job closed file descriptors of its worker, or ended the worker's threads."""


class QueueNotEmpty(JobrunnerError):
    """The queue holds tasks or batches, or a periodic job runs on it, so it was not deleted."""


class DriverFailed(JobrunnerError):
    """The driver of a queue cannot continue; the worker ended."""


class DuplicateTask(JobrunnerError):
    """An equal task (by its unique lock), or a task with this id, exists already; nothing was added.

    `task_id` is the id of the existing task; `task_ids` has all such ids of a call with many tasks.
    """

    def __init__(self, message: str, task_id: str = "", task_ids: list[str] | None = None) -> None:
        super().__init__(message)  # unpickling calls this with the message alone, and sets the attributes after
        self.task_id = task_id
        self.task_ids = list(task_ids or [task_id])


class LeaseError(JobrunnerError):
    """A report on a lease that is over; nothing was changed."""


class NotReserved(LeaseError):
    """The task is not reserved: it never was, or its lease ended."""


class LeaseLost(LeaseError):
    """Another attempt holds the task, or it was moved to another queue."""


class ReportUnknown(OutcomeUnknown, LeaseError):
    """The reply to a report was lost, and the repeated report found no lease: most likely the first was taken."""


class ReportUnsent(ServerUnavailable, LeaseError):
    """The node of a cluster that has this partition is away, and took no report; others of the batch were taken."""


class TargetFull(QueueFull, LeaseError):
    """The queue that an item should move to has reached its max_size; the item stays under its lease."""


class TooManyHops(UsageError, LeaseError):
    """An item was moved as often as is allowed; it stays under its lease."""


class BatchLost(LeaseError):
    """Another driver holds the batch, its lease ended, or it is decided already; nothing was changed."""


class ReportsRefused(ExceptionGroup[LeaseError], LeaseError):
    """Some reports of a batch were refused and changed nothing, but for ReportUnknown; the others were taken.

    `verdicts` has one entry for each lease of the batch, in order: True when the report was taken, False when the item
    is gone, or the error of a refused report: NotReserved, LeaseLost, for a move also TargetFull and TooManyHops;
    ReportUnknown when the reply was lost, ReportUnsent when the node of the partition is away. `except*` and
    `exceptions` see these errors.
    """

    verdicts: "list[bool | LeaseError]"

    def __new__(cls, verdicts: "list[bool | LeaseError]") -> Self:
        """A group of the errors among the verdicts, at least one."""
        refused = [one for one in verdicts if isinstance(one, LeaseError)]
        unknown = sum(isinstance(one, ReportUnknown) for one in refused)
        text = f"{len(refused) - unknown} of {len(verdicts)} reports were refused and changed nothing, see verdicts"
        if unknown:
            text += f"; the replies to {unknown} were lost, and most likely they were taken"
        made = super().__new__(cls, text, refused)
        made.verdicts = list(verdicts)
        return made


class MiddlewareError(JobrunnerError):
    """A middleware did not call `next` once, or cannot be around this kind of job; the message names it."""


class TaskError(JobrunnerError):
    """An error about one task."""


class TaskFailed(TaskError):
    """The task is dead; the message has its last error."""


class TaskCancelled(TaskError):
    """The task was cancelled before it finished."""


class TaskTimeout(TaskError, TimeoutError):
    """`result(timeout=...)` ran out; the task itself continues."""


class TaskGone(TaskError):
    """No such task: it never existed, or is no longer kept."""


class AttemptTimeout(TaskError):
    """An attempt ran longer than its job's `timeout`."""

    def __str__(self) -> str:  # raised in a thread, it has no text: Python accepts a class there, not an object
        return super().__str__() or "the attempt ran longer than its timeout"


class AttemptCancelled(TaskError):
    """A job cancelled the asyncio task that ran an attempt: its own, or that of another attempt on its event loop."""


class AttemptCrashed(TaskError):
    """The process or the event loop that ran an attempt died."""
