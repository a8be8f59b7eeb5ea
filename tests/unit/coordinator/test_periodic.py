"""The definitions of periodic jobs that workers publish."""

import base64
from datetime import timedelta
from uuid import UUID, uuid4

import msgspec

from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.jobs import registry
from jobrunner.jobs.build import define, published
from jobrunner.jobs.decorator import job
from jobrunner.jobs.job import PeriodicJob


def test_a_tick_makes_a_task_with_every_option_of_its_job() -> None:
    @job(
        name="definitions.all", queue="q", every=timedelta(minutes=5), priority=2, keepalive=9, max_attempts=3,
        max_stalled=2, expires_in=60, partition_by="tenant",
    )  # fmt: skip
    class All(PeriodicJob):
        tenant: str = "acme"

        def run(self) -> None: ...

    registry.forget("definitions.all")  # others publish every job of the process
    assert All.definition is not None
    task = define(All.definition).task("id-of-the-tick", None)

    assert (task.id, task.queue, task.type) == ("id-of-the-tick", "q", "definitions.all")
    assert task.payload == b'{"tenant":"acme"}'
    assert (task.priority, task.keepalive_ms, task.max_attempts, task.max_stalled) == (2, 9000, 3, 2)
    assert (task.expires_in_ms, task.key) == (60_000, "acme")


def test_what_a_factory_makes_is_no_part_of_a_definition() -> None:
    """Two calls, as two heartbeats or two workers, publish the same; the worker that runs the task makes the rest."""

    @job(name="definitions.made", queue="q", every=timedelta(minutes=5), partition_by="tenant")
    class Made(PeriodicJob):
        days: int = 2
        token: UUID = msgspec.field(default_factory=uuid4)
        tenant: str = msgspec.field(default_factory=lambda: "acme")
        tags: frozenset[str] = frozenset("ihgfedcba")

        def run(self) -> None: ...

    registry.forget("definitions.made")
    assert Made.definition is not None
    first, second = (define(Made.definition) for _ in range(2))
    assert first == second
    assert first.payload == b'{"days":2,"tenant":"acme","tags":["a","b","c","d","e","f","g","h","i"]}'
    assert first.key == "acme"
    runs = [Made.definition.parameters.read(first.payload) for _ in range(2)]
    assert runs[0].token != runs[1].token


def test_the_signature_of_a_definition_is_stored_as_before() -> None:
    @job(name="definitions.signed", queue="q", every=timedelta(minutes=5))
    class Signed(PeriodicJob):
        def run(self) -> None: ...

    registry.forget("definitions.signed")
    assert Signed.definition is not None
    encryption = PayloadEncryption([base64.b64encode(bytes(32)).decode()], kind="sign")
    stored = msgspec.json.decode(published([Signed.definition], encryption)["definitions.signed"])

    assert stored["seal"].startswith("sealed ")
    assert "signature" not in stored
