"""A password that changes while workers run."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobrunner import Client
from tests.acceptance.fleet import Fleet
from tests.acceptance.jobs_for_tests import Hold, Work
from tests.acceptance.ledger import Ledger
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

PROVIDER = """
from pathlib import Path

class Tokens:
    def get_credentials(self):
        return "ann", Path({path!r}).read_text()
"""


@pytest.mark.parametrize("option", ["password_file", "credential_provider"])
def test_a_worker_its_lease_keeper_and_its_children_go_on_with_the_new_one(
    fleet: Fleet, server: Server, raw: Any, current: Client, ledger: Ledger, tmp_path: Path,
    audit: Callable[..., dict[str, int]], option: str,
) -> None:  # fmt: skip
    secret, gate = tmp_path / "secret", tmp_path / "gate"

    def allow(password: str) -> None:
        rights = ("allkeys", "allchannels", "+@all")
        raw.execute_command("ACL", "SETUSER", "ann", "on", "resetpass", f">{password}", *rights)

    def connections() -> list[str]:
        return [one["id"] for one in raw.client_list() if one["user"] == "ann"]

    def lease_end() -> datetime:
        when = task.record().when
        assert when is not None
        return when

    try:
        allow("first")
        secret.write_text("first")
        fleet.module("tokens_of_ann", PROVIDER.format(path=str(secret)))
        named = f"password_file={secret}" if option == "password_file" else "credential_provider=tokens_of_ann.Tokens"
        user = "ann@" if option == "password_file" else ""
        fleet.start_one(url=f"unix://{user}{server.socket}?{named}", concurrency=2)
        task = Hold(path=str(gate)).enqueue()
        wait_for(lambda: ledger.count("start") == 1)

        raw.acl_log_reset()
        allow("second")
        for one in connections():
            raw.client_kill_filter(_id=one)
        wait_for(lambda: any(one["reason"] == "auth" for one in raw.acl_log()))
        secret.write_text("second")  # a moment after the server has it, when connections were refused already
        first = lease_end()
        wait_for(lambda: lease_end() > first + timedelta(seconds=3))  # longer than a lease: it was renewed
        assert Work(n=7).enqueue().result(timeout=20) == 7
        gate.touch()

        task.result(timeout=20)
        assert ledger.count("start") == 2
        assert not any(audit("t").values())
    finally:
        raw.acl_log_reset()
        raw.acl_deluser("ann")
