"""The memory of scheduled tasks: fewer fields need less."""

from benchmarks.scheduled_bytes import written
from benchmarks.server import PrivateServer


def test_a_task_without_a_field_needs_less_memory() -> None:
    with PrivateServer() as server:
        whole, without = written(server, 5000, (), False), written(server, 5000, ("id", "place"), False)

    assert 100 < without < whole < 1000
