"""Every key jobrunner writes, in one place.

All keys start with the prefix of the client. Everything that belongs to one queue carries one hash tag, `{tag}`, so a
script touches a single slot of a Redis Cluster. The tag of a plain queue is its own name; all queues of a pipeline
share the pipeline's name, which makes a move between them one atomic step. The shards of a queue with `partitions` have
a tag each, those of a pipeline a tag for each number (see shards.py). Keys that belong to no queue, but are used in one
call, have a tag that no queue can have, `{/}` or `{/stats}`; every other key is alone in its slot.

==================================== ====== ====================================================================
key                                  type   content
==================================== ====== ====================================================================
``P:{tag}:Q:waiting``                zset   task id → place in the queue (see lua/lib/queue_position.lua)
``P:{tag}:Q:scheduled``              zset   task id → due time, Unix ms
``P:{tag}:Q:pending``                zset   task id → end of its lease, Unix ms
``P:{tag}:Q:dead``                   zset   task id → time of death, Unix ms
``P:{tag}:Q:done``                     zset   task id → time finished, Unix ms; only of a queue that keeps history
``P:{tag}:Q:leases``                 zset   task id → number of its newest lease (only its holder may report)
``P:{tag}:Q:settings``               hash   settings of `configure` and `pause`; absent fields are defaults; up to where
                                              history was noted and trimmed (lua/lib/history.lua); `capacity_wanted`:
                                              until when a producer waits for capacity, Unix ms;
                                              `recheck`, `parked`: open work after a change of limits per partition;
                                              `shards`, `key_shards`, `shard`, `slice_…`: of a queue with partitions
                                              (lua/lib/slices.lua); `partitions_at`: when their number last
                                              changed, Unix ms
``P:{tag}:shards``                   hash   of a pipeline: `partitions`, `shards`, `key_shards` of all its queues
``P:{tag}:Q:declared``               hash   the settings that programs declare, and who changed which by hand (see
                                            lua/queue_declare.lua)
``P:{tag}:Q:bucket``                   hash   state of the token bucket (see lua/lib/token_bucket.lua)
``P:{tag}:Q:bucket:<key>``             hash   the same, of one partition
``P:{tag}:Q:partition:<band>:<key>``   zset   task id → place: one partition, in a queue that has them
``P:{tag}:Q:rotation:<band>``          zset   partition → number of its last turn (`band` -1 is the highest priority)
``P:{tag}:Q:blocked``                zset   partition at a limit → when it gets a token, Unix ms; 2^46 while it has all
                                            its leases, 0 when it is to be checked again
``P:{tag}:Q:unsure``                 zset   partitions that were blocked when the limits were changed
``P:{tag}:Q:inflight``               hash   partition → how many leases it holds
``P:{tag}:Q:holders``                hash   task id → partition, of those handed out under such a limit
``P:{tag}:Q:transfers``              hash   of a shard: slices of limits that move between shards (lua/lib/slices.lua)
``P:{tag}:Q:balanced``               string of the first shard: there while its slices were balanced just now; expires
``P:{tag}:Q:counters``               hash   enqueued, succeeded, failed, dead, recovered, orphaned, ... : totals;
                                            `unused`: see lua/lib/queue_scan.lua
``P:{tag}:Q:types``                  hash   ``<type> <outcome>`` → how many: `counters` by type, where the type is known
``P:{tag}:Q:arrival``                string arrival time of the last task that went straight to waiting, Unix ms
``P:{tag}:Q:wake``                   zset   one member when there may be work: idle workers block on it (a hint)
``P:{tag}:Q:capacity``               zset   one member when a full queue may have capacity: producers block on it
``P:{tag}:Q:batches``                zset   batch id → when it may be taken: end of its lease, or when it is due again
``P:{tag}:Q:batch_log``              list   how the last 100 attempts at batches ended, JSON, newest first; expires
                                            after a week (see broker/calls/batch_log.py)
``P:{tag}:Q:deaths``                 list   tasks that died since the last scan, for events: id, type, attempts,
                                            whether it was kept, error; the first 1 000, a day at most
``P:{tag}:Q:errors``                 zset   id of a group of errors → when it was last seen, to half an hour, Unix ms
``P:{tag}:Q:errors:<group>``         hash   one group of failed attempts (see broker/calls/error_groups.py)
``P:{tag}:Q:finishing``              zset   batch id → when any process may finish it: decided, or without members
``P:{tag}:Q:periodic:<name>``        hash   last tick and last task of a periodic job, its counts and
                                            last 20 ticks;
                                            expires when the job is forgotten, unless it is disabled
``P:{tag}:task:<id>``                hash   one task (see task.py)
``P:{tag}:batch:<id>``               hash   one batch: queue, epoch, state, range of its members, shared fields; expires
                                            when it is done
``P:{tag}:batch:<id>:members``       list   its task ids in order; parts of a split batch share that of their root
``P:{tag}:batch:<id>:nonces``        set    names of its lists of rows, so that all can be removed
``P:{tag}:batch:<id>:rows:<nonce>``  list   staged rows, four words each
``P:{tag}:batch:<id>:manifest``      list   the nonces that count, once it is decided
``P:{tag}:unique:<digest>``            string end of the lock (Unix ms), blank, id of the unique task that has it
``P:{tag}:sent:<call>``              string note of an enqueue that was applied, so that it adds nothing when it is sent
                                            again; expires after 10 s. `confirmed`: see confirmed_writes.py
``P:{tag}:outbox``                   hash   ends of tasks of flows that are not yet delivered to joins (see join.py)
``P:{tag}:join:<id>``                hash   one join of a flow (see join.py); always expires
``P:{tag}:join:<id>:collected``        hash   collected results of the members of a large join;
                                            becomes the hash of its task, or expires
``P:{tag}:waiters``                  zset   task id → when a client last said that it waits for it, Unix ms; expires
``P:{tag}:finished:<id>``            pubsub how the task ended, when a client waits for that
``P:queues``                         set    full names of all queues
``P:queues:leaving``                 zset   full names of queues that are being deleted or forgotten → since when,
                                            Unix ms: a later process finishes that, so that none is lost
``P:flows``                          zset   id of a flow → when it was sent, Unix ms; the last thousand, for people
``P:format``                         string number of the format of these keys (see broker/calls/server.py)
``P:{/}:periodics``                  hash   name → definition of a periodic job, JSON
``P:{/}:periodics:seen``             zset   name → when a worker last published the job, Unix ms; later when its
                                             heartbeats are over ten seconds apart
``P:{/}:periodics:deployed``         hash   name → its definitions that are published, see lua/periodic_define.lua
``P:{/}:periodics:queues``           hash   name → the queue that has the state of the job; it is moved with the job
``P:pipelines``                      hash   name → the graph of a pipeline, JSON, as the last program using it has it
``P:{/}:redact``                     set    names of parameters that pages and commands hide
``P:{/}:periodics:added``            hash   name → definition of a periodic job that was added at run time, JSON
``P:{/}:periodics:version``          string counts changes of definitions, so that the leader knows when to read them
``P:job:<type>``                     hash   metadata shared by all runs of a job
``P:{/}:workers``                    zset   worker id → last heartbeat, Unix ms
``P:{/}:worker:<id>``                hash   description of that worker; expires when its heartbeats stop
``P:{/}:leader``                     hash   id, epoch, lock length of the coordinating worker; expires unless renewed
``P:archive:<digest>``               hash   an archive of history: its open window, and up to when queues are in it
``P:archive:<digest>:holder``        string the writer of that archive; expires unless it is renewed
``P:{/}:worker:<id>:commands``         hash   commands for that worker: `quiet`, `stop`; expires
``P:operations:<id>``                hash   task and progress of a background operation; expires a day after an update
``P/audit``                          stream actions of users in dashboard and command line; the last 50 000 or so
``P/sessions``                       hash   digest of a session of the dashboard's login page → user and time; signed
``P/{login_attempts}:<digest>``      string wrong passwords or tokens that a client offered to the dashboard; expires
``P:{/}:epoch``                      string fencing number of the last leader
``P:{/stats}:m:<minute>``            hash   ``<queue> <type> <name>`` → number, of one (Unix) minute; kept 25 hours
``P:{/stats}:h:<hour>``              hash   the same of one (Unix) hour; kept 32 days
``P:{/stats}:total``                 hash   the same since the prefix exists (see broker/calls/stats.py)
``P:{/stats}:sampled``               hash   queue → its totals at the last sample of the leader
``P:{/stats}:streams``               hash   name of a streaming query of Spark → its last progress, JSON; expires
``P:events``                         stream events for people (see events.py); the last 10 000
``P:events:cursor``                    hash   queue → how many of its deaths have events
``P:releases``                       zset   release → when a worker first ran it, Unix ms; the last 100
==================================== ====== ====================================================================
"""

import re
from collections.abc import Callable
from functools import lru_cache

import msgspec

from jobrunner.broker.shards import SHARD_SUFFIX, is_shard, tag_of, whole_queue
from jobrunner.errors import InvalidName
from jobrunner.formatting import describe

_SHARED = b"{/}:"
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_PLAIN_QUEUE = r"(?!task(?::|@|\Z))[A-Za-z0-9_.:-]{1,128}"
_STATION_QUEUE = rf"(?P<tag>[A-Za-z0-9_.:-]{{1,128}}){SHARD_SUFFIX}?/(?!(?P=tag)\Z){_PLAIN_QUEUE}"
_QUEUE = re.compile(rf"{_STATION_QUEUE}|{_PLAIN_QUEUE}{SHARD_SUFFIX}?")
_DIGITS = 28
"""The part of a made id before its tag; it is unique among made ids."""
_MADE_ID = re.compile(rf"[0-9a-f]{{{_DIGITS}}}-([A-Za-z0-9_.:-]{{1,128}}{SHARD_SUFFIX}?)")


def check_name(value: object, what: str) -> str:
    """Returns `value` if it is a valid name of a `what` (queue, job, task id, ...), else raises InvalidName."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    described = describe(value if not isinstance(value, str) or len(value) <= 60 else value[:57] + "...")
    raise InvalidName(f"{what} {described} is not allowed: use 1 to 128 of the characters A-Z a-z 0-9 _ . : -")


def check_id(value: object) -> str:
    """Returns a task id: a name of the user's own, or one that jobrunner made (longer by its time stamp)."""
    if isinstance(value, str) and _MADE_ID.fullmatch(value):
        return value
    return check_name(value, "task id")


def check_own_id(value: object, tag: str) -> str:
    """Returns the id that a user chose for a new task of this tag. Raises InvalidName, also for an id that jobrunner
    made for a task of another tag: a call with the id alone would find, and cancel, that other task."""
    task_id = check_id(value)
    other = tag_of_id(task_id)
    if other is not None and whole_queue(other) != whole_queue(tag):
        raise InvalidName(
            f"task id {task_id!r} is that of a task of {whole_queue(other)!r}, where commands look for it by its id; "
            f"for {whole_queue(tag)!r} make one from it: f'{whole_queue(tag)}-{{id[:{_DIGITS}]}}'"
        )
    return task_id


def is_id(value: str) -> bool:
    """Whether `value` is a valid task id."""
    return bool(_MADE_ID.fullmatch(value) or _NAME.fullmatch(value))


def tag_of_id(task_id: str) -> str | None:
    """The hash tag inside an id that jobrunner made; None for an id of the user's own."""
    made = _MADE_ID.fullmatch(task_id)
    return made.group(1) if made else None


def split_queue(name: object) -> tuple[str, str]:
    """(tag, queue) of a full queue name: `mail` is its own tag, `orders/raw` is queue raw of pipeline orders."""
    if isinstance(name, str) and name.count("/") == 1:
        tag, queue = name.split("/")
        check_name(tag, "pipeline name")
        if queue == tag:
            raise InvalidName(
                f"queue name {name!r} is not allowed: its keys would be those of queue {queue!r}; name the queue or "
                "its pipeline otherwise"
            )
    else:
        tag = queue = name  # type: ignore[assignment]
    check_name(queue, "queue name")
    if queue == "task" or queue.startswith("task:"):
        raise InvalidName(f"queue name {name!r} is reserved: its keys would be those of tasks; choose another")
    return tag, queue


def split_any_queue(name: object) -> tuple[str, str]:
    """As `split_queue`, also for a shard (see shards.py), whose name no user can choose: `mail@3` is its own tag, the
    tag of `orders@3/raw` is `orders@3`."""
    if isinstance(name, str) and is_shard(name):
        split_queue(whole_queue(name))
        return tag_of(name), name.rpartition("/")[2]
    return split_queue(name)


def check_tag(tag: str) -> None:
    """Raises InvalidName unless `tag` can be the hash tag of a queue, pipeline or shard."""
    check_name(whole_queue(tag) if is_shard(tag) else tag, "queue name")


def check_is_text(queue: object) -> None:
    """Raises InvalidName for a queue name that is not a str. `Keys.queue` refuses all other invalid names."""
    if not isinstance(queue, str):
        split_queue(queue)


def is_queue(name: str) -> bool:
    """Whether `name` is a valid full name of a queue, as `split_queue` accepts it."""
    return _QUEUE.fullmatch(name) is not None


class QueueKeys(msgspec.Struct, frozen=True):
    """The keys of one queue. Attributes have the names of the scripts' key variables."""

    name: str
    tag: str
    base: bytes
    tasks: bytes
    finished: bytes
    waiters: bytes
    outbox: bytes
    waiting: bytes
    scheduled: bytes
    pending: bytes
    dead: bytes
    deaths: bytes
    errors: bytes
    done: bytes
    leases: bytes
    settings: bytes
    shard_counts: bytes
    """The hash with the numbers of shards: the queue's settings, or for a pipeline a hash shared by all its queues."""
    declared: bytes
    bucket: bytes
    transfers: bytes
    balanced: bytes
    counters: bytes
    types: bytes
    arrival: bytes
    wake: bytes
    capacity: bytes
    batches: bytes
    batch_log: bytes
    finishing: bytes
    batch: bytes
    """Prefix of the hashes of batches."""

    @property
    def queues(self) -> bytes:
        """The registry of all queues; it has a slot of its own."""
        return self.base[: -len(self.tag) - 3] + b"queues"

    @property
    def format(self) -> bytes:
        """The number of the format; it has a slot of its own."""
        return self.base[: -len(self.tag) - 3] + b"format"

    def task(self, task_id: str) -> bytes:
        """The hash of one task."""
        return self.tasks + task_id.encode()

    def unique(self, digest: str) -> bytes:
        """The lock of a unique task."""
        return b"%bunique:%b" % (self.base, digest.encode())

    def join(self, join_id: str) -> bytes:
        """One join of a flow."""
        return self.base + b"join:" + join_id.encode()

    def join_and_collected(self, join_id: str) -> tuple[bytes, bytes]:
        """One join of a flow, and the collected results of its members."""
        join = self.join(join_id)
        return join, join + b":collected"

    def periodic(self, name: str) -> bytes:
        """The state of a periodic job that runs on this queue."""
        return b"%b%b:periodic:%b" % (self.base, self.name.rpartition("/")[2].encode(), name.encode())


class Keys:
    """The keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = check_name(prefix, "prefix")
        self._root = prefix.encode() + b":"
        shared = self._root + _SHARED
        self.queues = self._root + b"queues"
        self.queues_leaving = self._root + b"queues:leaving"
        self.flows = self._root + b"flows"
        self.format = self._root + b"format"
        self.periodics = shared + b"periodics"
        self.periodics_seen = shared + b"periodics:seen"
        self.periodics_version = shared + b"periodics:version"
        self.periodics_added = shared + b"periodics:added"
        self.periodics_deployed = shared + b"periodics:deployed"
        self.periodics_queues = shared + b"periodics:queues"
        self.redact = shared + b"redact"
        self.workers = shared + b"workers"
        self.pipelines = self._root + b"pipelines"
        self.leader = shared + b"leader"
        self.epoch = shared + b"epoch"
        # Keys that protect the dashboard are not below `P:*`, the keys that the user of a worker may write.
        self._guard = prefix.encode() + b"/"
        self.audit = self._guard + b"audit"
        self.sessions = self._guard + b"sessions"
        self.events = self._root + b"events"
        self.events_cursor = self._root + b"events:cursor"
        self.releases = self._root + b"releases"
        self.stats_sampled = self._root + b"{/stats}:sampled"
        self.streams = self._root + b"{/stats}:streams"
        self.stats_total = self._root + b"{/stats}:total"
        self.queue: Callable[[str], QueueKeys] = lru_cache(maxsize=4096)(self._queue)
        """The keys of a queue by its full name. Raises InvalidName."""

    def _queue(self, name: str) -> QueueKeys:
        tag, queue = split_any_queue(name)
        base = b"%b{%b}:" % (self._root, tag.encode())
        own = base + queue.encode() + b":"
        return QueueKeys(
            name=name,
            tag=tag,
            base=base,
            tasks=base + b"task:",
            finished=base + b"finished:",
            waiters=base + b"waiters",
            outbox=base + b"outbox",
            waiting=own + b"waiting",
            scheduled=own + b"scheduled",
            pending=own + b"pending",
            dead=own + b"dead",
            deaths=own + b"deaths",
            errors=own + b"errors",
            done=own + b"done",
            leases=own + b"leases",
            settings=own + b"settings",
            shard_counts=base + b"shards" if "/" in name else own + b"settings",
            declared=own + b"declared",
            bucket=own + b"bucket",
            transfers=own + b"transfers",
            balanced=own + b"balanced",
            counters=own + b"counters",
            types=own + b"types",
            arrival=own + b"arrival",
            wake=own + b"wake",
            capacity=own + b"capacity",
            batches=own + b"batches",
            batch_log=own + b"batch_log",
            finishing=own + b"finishing",
            batch=base + b"batch:",
        )

    def counters(self, name: str) -> bytes:
        """The totals of a queue by its full name, which is not checked: for callers that read very many queues."""
        return self.state(name, "counters")

    def state(self, name: str, state: str) -> bytes:
        """The tasks of a queue in one state, such as `waiting`; the name of the queue is not checked either."""
        tag, _, queue = name.rpartition("/")
        return b"%b{%b}:%b:%b" % (self._root, (tag or queue).encode(), queue.encode(), state.encode())

    def tag_base(self, tag: str) -> bytes:
        """Prefix of the keys of every queue and task of one tag."""
        check_tag(tag)
        return b"%b{%b}:" % (self._root, tag.encode())

    def outbox(self, tag: str) -> bytes:
        """The outbox: ends of tasks of flows that are not yet delivered to joins."""
        return self.tag_base(tag) + b"outbox"

    def job(self, name: str) -> bytes:
        """The metadata hash of a job."""
        return self._root + b"job:" + name.encode()

    def archive(self, digest: str) -> bytes:
        """The state of an archive of history."""
        return self._root + b"archive:" + digest.encode()

    def worker(self, worker_id: str) -> bytes:
        """The description of a worker."""
        return self._root + _SHARED + b"worker:" + worker_id.encode()

    def commands(self, worker_id: str) -> bytes:
        """Commands for a worker."""
        return self.worker(worker_id) + b":commands"

    def operation(self, operation_id: str) -> bytes:
        """A background operation of the dashboard."""
        return self._root + b"operations:" + operation_id.encode()

    def login_attempts(self, digest: str) -> bytes:
        """How many wrong secrets a client sent to the dashboard."""
        return b"%b{login_attempts}:%b" % (self._guard, digest.encode())

    def stats_of_minute(self, minute: int) -> bytes:
        """The statistics of a minute, counted since 1970."""
        return b"%b{/stats}:m:%d" % (self._root, minute)

    def stats_of_hour(self, hour: int) -> bytes:
        """The statistics of an hour, counted since 1970."""
        return b"%b{/stats}:h:%d" % (self._root, hour)
