"""How a soak begins and ends, without a run of it. tests/acceptance/test_soak.py runs some."""

from dataclasses import replace
from pathlib import Path

import pytest

from jobrunner.errors import ServerUnavailable
from jobrunner.soak import run
from jobrunner.soak.fault_proxy import FaultProxy
from jobrunner.soak.run import Soak, SoakOptions
from tests.support.server import Server


def options(server: Server) -> SoakOptions:
    return SoakOptions(length_s=1, url=server.url, prefix="soak-of-a-test")


def test_a_server_that_is_away_at_the_end_spares_the_verdict_and_its_keys_are_told(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_client: object) -> int:
        raise ServerUnavailable("away")

    soak = Soak(options(server), tmp_path)
    monkeypatch.setattr(run, "delete_all", away)

    soak.close()

    assert soak.left_over


def test_a_soak_that_cannot_begin_closes_what_it_had_opened(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[str]()

    class Proxy(FaultProxy):
        def close(self) -> None:
            super().close()
            closed.append("proxy")

    (tmp_path / "file").touch()
    monkeypatch.setattr(run, "FaultProxy", Proxy)

    with pytest.raises(NotADirectoryError):
        Soak(replace(options(server), kinds=["cuts"], history=tmp_path / "file/history"), tmp_path)

    assert closed == ["proxy"]
