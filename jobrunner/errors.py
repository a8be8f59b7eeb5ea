"""Every exception jobrunner raises, in one tree.

::

    JobrunnerError
    ├── UsageError (ValueError)         the caller asked for something that cannot be; nothing was written
    │   ├── UnknownOption               an option nobody knows; names the nearest known one
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
    │   ├── PipelineError               a pipeline whose stations do not fit together, or a station's wrong answer
    │   │   └── StationError            what a station's function returned is wrong, whatever its items are
    │   │       ├── TableError          a table of a lakehouse or of SQL is away, or has other columns
    │   │       └── FolderError         the folder of a sink cannot be written to: a full disk, no rights, no folder
    │   ├── SparkMissing                PySpark is not installed
    │   ├── JavaMissing                 no Java that Spark supports on this machine
    │   ├── EncryptionMissing           the package that encrypts payloads is not installed
    │   ├── FsspecMissing               the package that a payload store needs is not installed
    │   ├── MicroBatchChanged           a micro-batch has the number of another one that was written
    │   ├── UnknownMember               a row of a batch for an item that is none of its members
    │   └── ClientClosed                an operation on a client after close()
    ├── ServerError                     the server did not do what was asked
    │   ├── ServerUnavailable           it cannot be reached
    │   │   └── BufferFull              and no more tasks can wait for it in this process
    │   ├── OutcomeUnknown              it was reached, but the reply was lost: done or not done
    │   ├── ServerRefused               it answered with an error (ACL, READONLY, LOADING, ...)
    │   │   └── ServerFull              it is at maxmemory; nothing was written
    │   ├── DamagedData                 what is stored there cannot be read
    │   ├── UnsafeServer                its settings may lose tasks (an evicting maxmemory-policy)
    │   ├── NewerFormat                 a newer version wrote what this one cannot read
    │   ├── OlderFormat                 an older version wrote what this one cannot read
    │   └── EmbeddedServerError         the private server of this folder cannot be started or reached
    ├── EncryptionError                 a payload or result that cannot be decrypted; it stays as it is
    │   ├── EncryptionKeyMissing        its key is not among those of this client
    │   ├── DecryptionFailed            it was changed, or is that of another task
    │   └── NotEncrypted                it is plain, and this client requires otherwise
    ├── PayloadStoreError               a payload cannot be written to, or read from, a payload store
    │   ├── PayloadStoreUnavailable     the store cannot be reached or used by this process; another may
    │   ├── PayloadObjectMissing        the object of a task is not there
    │   └── PayloadObjectChanged        the object, or the reference to it, is not what was written
    ├── HistoryTrimmed                  finished tasks were deleted before a stream had read them
    ├── QueueFull                       the queue has reached its max_size; nothing was added
    ├── WorkerBroken                    a job took away what its worker works with; the worker ended
    ├── QueueNotEmpty                   it holds tasks, or a periodic job runs on it: it was not deleted
    ├── DriverFailed                    what serves a queue in place of the worker cannot go on; the worker ended
    ├── DuplicateTask                   a task like it, or with its id, is there already; nothing was added
    ├── LeaseError                      a report on a lease that is over; nothing was changed
    │   ├── NotReserved                 nobody holds the task
    │   ├── LeaseLost                   another attempt holds it, or it was moved
    │   ├── ReportUnknown (OutcomeUnknown)  its reply was lost; most likely it was taken
    │   ├── ReportUnsent (ServerUnavailable)  the node of its partition is away
    │   ├── TargetFull (QueueFull)      it stays leased: the queue that it should move to is full
    │   ├── TooManyHops (UsageError)    it stays leased: it was moved as often as is allowed
    │   ├── BatchLost                   another driver holds the batch, its lease ended, or it is decided
    │   └── ReportsRefused (ExceptionGroup)  of a batch: some were refused, the others were taken
    ├── MiddlewareError                 a middleware did not call `next` once, or cannot be around this job
    └── TaskError                       about one task
        ├── TaskFailed                  it is dead; carries its last error
        ├── TaskCancelled               it was cancelled before it finished
        ├── TaskTimeout (TimeoutError)  result(timeout=...) ran out; the task goes on
        ├── TaskGone                    no such task: never was, or no longer kept
        ├── AttemptTimeout              an attempt ran longer than its job's `timeout`
        ├── AttemptCancelled            the asyncio task of an attempt was cancelled by a job
        └── AttemptCrashed              the process or the event loop of an attempt died
"""

from typing import Self


class JobrunnerError(Exception):
    """Root of every error that jobrunner raises."""


class UsageError(JobrunnerError, ValueError):
    """The caller asked for something that cannot be; nothing was written."""


class UnknownOption(UsageError):
    """An unknown option; the message names the nearest known one."""


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
    """PySpark, or what a part of it needs, is not installed; the message has the command that installs it."""


class JavaMissing(UsageError):
    """No Java that Spark supports on this machine; the message has the command that installs one."""


class EncryptionMissing(UsageError):
    """The package that encrypts payloads is not installed; the message has the command that installs it."""


class FsspecMissing(UsageError):
    """The package that a payload store needs is not installed; the message says which, or how to install it."""


class PipelineError(UsageError):
    """A pipeline whose stations do not fit together, or what a station returned does not fit its links."""


class StationError(PipelineError):
    """The return value of a station's function fits none of its links, for any item."""


class TableError(StationError):
    """A table of a lakehouse or of a SQL database cannot take the rows: its columns do not fit, or it, its catalog or
    its server cannot be reached.

    Nothing was committed, and no failure is counted: the station pauses, and continues once the cause is mended.
    """

    may_be_of_rows = False
    """Whether rows might be the cause, as of a commit that a library refused: then batches are split to find others."""


class FolderError(StationError):
    """The folder of a sink cannot be written to: a full or read-only disk, no rights, or a path that is no folder.

    Nothing was written, and no failure is counted: the station pauses, and continues once the cause is mended.
    """


class MicroBatchChanged(UsageError):
    """A micro-batch has the number of another one that was written before. Nothing was added.

    In a queue it had another number of rows: the checkpoint is older than the queue, or was copied. In a table or a
    folder it was that of a query with another checkpoint.
    """

    @classmethod
    def of_another_query(cls, batch_id: str) -> Self:
        """Its rows would pass for repeated ones, or replace those of the other."""
        return cls(
            f"micro-batch {batch_id!r} was written by a query with another checkpoint, so nothing is written now: with "
            "a new checkpoint numbers begin at 0 again, so give micro_batch(name, number) another name"
        )


class UnknownMember(UsageError):
    """A row of a batch for an item that is none of its members; nothing was staged."""


class ClientClosed(UsageError):
    """An operation on a client after close()."""


class ServerError(JobrunnerError):
    """The server did not do what was asked."""


class ServerUnavailable(ServerError):
    """The server cannot be reached; nothing was sent, or only what changes nothing more when it is made once more."""


class BufferFull(ServerUnavailable):
    """The server cannot be reached, and no more tasks can wait for it in this process; these were not taken."""


class OutcomeUnknown(ServerError):
    """The connection broke after the command was sent: it was done or it was not. Of a call that enqueues many: some of
    them may have been added."""


class ServerRefused(ServerError):
    """The server answered with an error; the message carries its words."""


class ServerFull(ServerRefused):
    """The server is at maxmemory; nothing was written."""


class DamagedData(ServerError):
    """Data on the server cannot be read: another program changed it; the message names the key."""


class UnsafeServer(ServerError):
    """The server's settings may lose tasks."""


class NewerFormat(ServerError):
    """A newer version of jobrunner wrote below this prefix what this one cannot read; nothing was changed."""


class OlderFormat(ServerError):
    """An older version of jobrunner wrote below this prefix what this one cannot read; nothing was changed."""


class EmbeddedServerError(ServerUnavailable):
    """The private server of a folder cannot be started or reached."""


class EncryptionError(JobrunnerError):
    """A payload or result is encrypted or signed and cannot be decrypted or verified; nothing was changed or lost."""


class EncryptionKeyMissing(EncryptionError):
    """The key that it was encrypted or signed with is not among the `payload_keys` of this client."""


class DecryptionFailed(EncryptionError):
    """A payload or result was changed, is that of another task, or has another key of the same name."""


class NotEncrypted(EncryptionError):
    """A payload or result is neither encrypted nor signed, and this client has `require_encryption`."""


class PayloadStoreError(JobrunnerError):
    """A payload cannot be written to, or read from, the payload store; nothing was changed or lost on the server."""


class PayloadStoreUnavailable(PayloadStoreError):
    """The store cannot be reached, this process may not use it, or has none configured; the message says which."""


class PayloadObjectMissing(PayloadStoreError):
    """The object with the payload of a task is not in the store; the message names its URL and the task."""


class PayloadObjectChanged(PayloadStoreError):
    """The object with a payload, or the reference to it, was changed: size, checksum or name do not fit."""


class HistoryTrimmed(JobrunnerError):
    """Finished tasks were deleted before a stream had read them; the message tells how to go on."""


class QueueFull(JobrunnerError):
    """The queue has reached its max_size; nothing was added to it.

    `queue` is its name, `max_size` the most that it may hold (of a queue with partitions: the part of one of them),
    and `wanted` how many tasks the call has. Of a move (TargetFull) `max_size` is None.
    """

    def __init__(self, message: str, wanted: int = 1, *, queue: str = "", max_size: int | None = None) -> None:
        super().__init__(message)
        self.wanted = wanted
        self.queue = queue
        self.max_size = max_size


class WorkerBroken(JobrunnerError):
    """A job took away what its worker works with: it closed its file descriptors, or ended its threads."""


class QueueNotEmpty(JobrunnerError):
    """The queue holds something, or a periodic job runs on it, so it was not deleted."""


class DriverFailed(JobrunnerError):
    """The driver of a queue cannot continue; the worker ended."""


class DuplicateTask(JobrunnerError):
    """A task like this one, or with its id, is there already; nothing was added.

    `task_id` is the id of the one that is there; `task_ids` are all of them, where many were sent.
    """

    def __init__(self, message: str, task_id: str = "", task_ids: list[str] | None = None) -> None:
        super().__init__(message)  # unpickled, it is made of the message alone, and then gets its attributes
        self.task_id = task_id
        self.task_ids = list(task_ids or [task_id])


class LeaseError(JobrunnerError):
    """A report on a lease that is over; nothing was changed."""


class NotReserved(LeaseError):
    """The task is not reserved: it never was, or its lease ended."""


class LeaseLost(LeaseError):
    """Another attempt holds the task, or it was moved to another queue."""


class ReportUnknown(OutcomeUnknown, LeaseError):
    """The reply to a report was lost, and sent again it found no lease: most likely it was taken the first time."""


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

    `verdicts` has one entry for each lease of the batch, in its order: True when its report was taken, False when its
    item is gone, or the error it was refused with: NotReserved, LeaseLost, of a move also TargetFull and TooManyHops;
    ReportUnknown when its reply was lost, ReportUnsent when the node of its partition is away. `except*` and
    `exceptions` see these errors.
    """

    verdicts: "list[bool | LeaseError]"

    def __new__(cls, verdicts: "list[bool | LeaseError]") -> Self:
        """A group of the errors among the verdicts, of which there must be one."""
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
    """About one task."""


class TaskFailed(TaskError):
    """The task is dead; the message carries its last error."""


class TaskCancelled(TaskError):
    """The task was cancelled before it finished."""


class TaskTimeout(TaskError, TimeoutError):
    """`result(timeout=...)` ran out; the task itself goes on."""


class TaskGone(TaskError):
    """No such task: there never was one, or it is no longer kept."""


class AttemptTimeout(TaskError):
    """An attempt ran longer than its job's `timeout`."""

    def __str__(self) -> str:  # raised in a thread it has no text: Python takes a class for that, and no object
        return super().__str__() or "the attempt ran longer than its timeout"


class AttemptCancelled(TaskError):
    """A job cancelled the asyncio task that ran an attempt: its own, or that of another attempt on its event loop."""


class AttemptCrashed(TaskError):
    """The process or the event loop that ran an attempt died."""
