"""The life cycle of an embedded server: processes start, share and stop it, and any of them may be killed.

Every test has a real server; processes are real and are killed with SIGKILL.
"""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
import redis

from jobrunner.broker.embedded import control as embedded_control
from jobrunner.broker.embedded import locks as embedded_locks
from jobrunner.broker.embedded import process as embedded_process
from jobrunner.broker.embedded.locks import is_locked, turn
from jobrunner.broker.embedded.process import ask
from jobrunner.broker.embedded.server import EmbeddedServer
from jobrunner.errors import EmbeddedServerError

ON_LINUX = sys.platform == "linux"

OBEY = """
import os, signal
from pathlib import Path
from jobrunner.broker.embedded.server import EmbeddedServer
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
os.setsid()
server = EmbeddedServer(Path(folder), fsync=fsync)
while True:
    word = orders.recv()
    try:
        orders.send(str(getattr(server, word)()))
    except Exception as error:
        orders.send(f"failed: {error}")
"""


class Process:
    """Another process, in a session of its own, that runs `code` with `folder` and `orders`, a pipe to us."""

    def __init__(self, code: str, folder: Path, *, fsync: str = "everysec") -> None:
        # A fork server imports the package once for all of them, and has no threads to fork.
        processes = get_context("forkserver")
        processes.set_forkserver_preload(["jobrunner.broker.embedded.server"])
        self._orders, orders = processes.Pipe()
        scope = {"orders": orders, "folder": str(folder), "fsync": fsync}
        self.process = processes.Process(target=exec, args=(code, scope))
        self.process.start()
        orders.close()

    def tell(self, word: str) -> None:
        self._orders.send(word)

    def hear(self) -> str:
        assert self._orders.poll(30), "no answer"
        return str(self._orders.recv())

    def obey(self, word: str) -> str:
        self.tell(word)
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "s"
    yield path
    stop_for_good(path)


@pytest.fixture
def user(folder: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(fsync: str = "everysec") -> Process:
        started.append(Process(OBEY, folder, fsync=fsync))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def stop_for_good(folder: Path) -> None:
    pid = EmbeddedServer(folder).status().pid if folder.is_dir() else None
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_locked(folder / "server.lock"))


def wait_until(fact: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def connect(socket: Path | str) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(socket), decode_responses=True)


def pid_of(folder: Path) -> int:
    pid = EmbeddedServer(folder).status().pid
    assert pid is not None
    return pid


def kill_server(folder: Path) -> None:
    os.kill(pid_of(folder), signal.SIGKILL)
    wait_until(lambda: not is_locked(folder / "server.lock"))


def starts(folder: Path) -> int:
    return (folder / "server.log").read_text().count("is starting")


def test_the_first_use_starts_a_server_that_is_private_durable_and_never_evicts(folder: Path) -> None:
    socket = EmbeddedServer(folder).acquire()

    wanted = {
        "port": "0",
        "unixsocket": str(socket),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "hash-max-listpack-value": "512",
        "save": "",
        "dir": str(folder),
        "logfile": str(folder / "server.log"),
    }
    assert connect(socket).config_get(*wanted) == wanted
    assert socket.stat().st_mode & 0o777 == 0o700
    assert (folder / ".gitignore").read_text() == "*\n"


def test_acquiring_twice_and_releasing_twice_count_once(folder: Path) -> None:
    server = EmbeddedServer(folder)

    assert server.acquire() == server.acquire() == server.ensure()
    assert starts(folder) == 1
    assert server.status().users == (1 if ON_LINUX else None)
    server.release()
    server.release()

    assert not server.status().running


def test_the_last_user_stops_the_server_and_its_data_stays(folder: Path) -> None:
    first, last = EmbeddedServer(folder), EmbeddedServer(folder)
    connect(first.acquire()).set("kept", "yes")
    last.acquire()

    first.release()
    assert last.status().running
    last.release()
    assert not last.status().running
    assert not is_locked(folder / "server.lock")

    assert connect(first.acquire()).get("kept") == "yes"


def test_eight_processes_that_start_at_once_share_one_server(folder: Path, user: Callable[..., Process]) -> None:
    users = [user() for _ in range(8)]

    for one in users:
        one.tell("acquire")
    assert {one.hear() for one in users} == {str(EmbeddedServer(folder).status().socket)}
    assert starts(folder) == 1
    assert EmbeddedServer(folder).status().users == (8 if ON_LINUX else None)

    for one in users:
        one.tell("release")
    assert {one.hear() for one in users} == {"None"}
    assert not EmbeddedServer(folder).status().running


def test_processes_that_come_and_go_never_find_a_server_about_to_stop(folder: Path) -> None:
    def come_and_go() -> None:
        for _ in range(8):
            server = EmbeddedServer(folder)
            connect(server.acquire()).incr("visits")
            server.release()

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert connect(EmbeddedServer(folder).acquire()).get("visits") == "32"


def test_a_newcomer_waits_while_the_last_user_stops_the_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last, newcomer = EmbeddedServer(folder), EmbeddedServer(folder)
    last.acquire()
    entering = threading.Thread(target=newcomer.acquire)
    stop = last._control.shut_down

    def stop_slowly() -> bool:
        entering.start()
        entering.join(0.3)  # long enough to slip in, if it could
        return stop()

    monkeypatch.setattr(last._control, "shut_down", stop_slowly)
    last.release()
    entering.join()

    assert connect(newcomer.status().socket).ping()
    assert starts(folder) == 2


def test_a_server_survives_the_kill_of_its_starter_and_is_adopted(folder: Path, user: Callable[..., Process]) -> None:
    starter = user()
    connect(starter.obey("acquire")).set("kept", "yes")
    pid = pid_of(folder)
    starter.kill()

    heir = EmbeddedServer(folder)
    assert connect(heir.acquire()).get("kept") == "yes"
    assert pid_of(folder) == pid
    assert starts(folder) == 1
    heir.release()
    assert not heir.status().running


def test_a_starter_killed_while_it_starts_leaves_a_server_to_adopt(folder: Path, user: Callable[..., Process]) -> None:
    starter = user()
    starter.tell("acquire")
    wait_until(lambda: is_locked(folder / "server.lock"))
    starter.kill()

    assert connect(EmbeddedServer(folder).acquire()).ping()
    assert starts(folder) <= 2  # a second one only if the first had not got as far as to hold the lock itself


def test_a_user_that_was_killed_no_longer_counts(folder: Path, user: Callable[..., Process]) -> None:
    killed, leaving = user(), EmbeddedServer(folder)
    killed.obey("acquire")
    leaving.acquire()
    killed.kill()

    leaving.release()

    assert not leaving.status().running


def test_ctrl_c_in_the_terminal_of_the_starter_does_not_reach_the_server(
    folder: Path, user: Callable[..., Process]
) -> None:
    starter = user()
    socket = starter.obey("acquire")

    assert starter.process.pid is not None
    os.killpg(starter.process.pid, signal.SIGINT)
    starter.process.join(timeout=30)

    assert starter.process.exitcode not in (None, 0)
    assert connect(socket).ping()


@pytest.mark.parametrize("stale_pid", ["1", "own", "", "not a pid"])
def test_stale_socket_and_pid_files_are_no_obstacle(folder: Path, stale_pid: str) -> None:
    server = EmbeddedServer(folder)
    server.acquire()
    kill_server(folder)
    (folder / "server.pid").write_text(str(os.getpid()) if stale_pid == "own" else stale_pid)
    assert server.status().socket.exists()
    assert (server.status().running, server.status().pid) == (False, None)

    assert connect(server.acquire()).ping()

    assert (folder / "server.pid").read_text().strip() == str(pid_of(folder))


def test_a_killed_server_comes_back_once_with_its_data_when_two_users_ask_at_the_same_time(
    folder: Path, user: Callable[..., Process]
) -> None:
    """R6, MOAB-07(a)"""
    users = [user(fsync="always"), user(fsync="always")]
    client = connect(users[0].obey("acquire"))
    users[1].obey("acquire")
    for number in range(200):
        client.rpush("acknowledged", number)
    kill_server(folder)

    for one in users:
        one.tell("ensure")
    answers = {one.hear() for one in users}

    assert starts(folder) == 2
    assert connect(answers.pop()).llen("acknowledged") == 200
    assert not answers
    users[0].obey("release")
    assert EmbeddedServer(folder).status().running
    users[1].obey("release")
    assert not EmbeddedServer(folder).status().running


def test_ensure_is_a_first_use_but_not_a_way_back_after_release(folder: Path) -> None:
    server = EmbeddedServer(folder)
    assert connect(server.ensure()).ping()
    assert server.status().users == (1 if ON_LINUX else None)
    server.release()

    with pytest.raises(EmbeddedServerError, match=r"was released by this process: acquire\(\) it again"):
        server.ensure()

    assert not server.status().running
    assert connect(server.acquire()).ping()


def test_fsync_always_holds_for_all_while_one_user_asked_for_it(folder: Path) -> None:
    careless, careful = EmbeddedServer(folder), EmbeddedServer(folder, fsync="always")

    def fsync(socket: Path) -> object:
        return connect(socket).config_get("appendfsync")["appendfsync"]

    assert fsync(careless.acquire()) == "everysec"
    assert fsync(careful.acquire()) == "always"
    kill_server(folder)
    assert fsync(careless.ensure()) == "always"
    careful.release()
    kill_server(folder)
    assert fsync(careless.ensure()) == "everysec"


def test_stop_stops_the_server_whoever_uses_it_and_a_user_can_bring_it_back(folder: Path) -> None:
    using, stopping = EmbeddedServer(folder), EmbeddedServer(folder)
    connect(using.acquire()).set("kept", "yes")

    assert stopping.stop() is True
    assert stopping.stop() is False
    assert not using.status().running

    assert connect(using.ensure()).get("kept") == "yes"


def test_the_status_of_a_folder_that_is_not_there_makes_none(folder: Path) -> None:
    server = EmbeddedServer(folder)

    status = server.status()

    assert (status.running, status.pid, status.users) == (False, None, 0)
    assert (status.folder, status.log) == (folder.resolve(), folder.resolve() / "server.log")
    assert server.stop() is False
    server.release()
    assert not folder.exists()


FORK = """
import os
from pathlib import Path
from jobrunner.broker.embedded.server import EmbeddedServer
server = EmbeddedServer(Path(folder))
server.acquire()
if (child := os.fork()) == 0:
    server.release()
    os._exit(0)
os.waitpid(child, 0)
orders.send(f"after the child released: {server.status().running}")
ready, done = os.pipe(), os.pipe()
if (child := os.fork()) == 0:
    server.ensure()
    os.write(ready[1], b"x")
    os.read(done[0], 1)
    server.release()
    os._exit(0)
os.read(ready[0], 1)
server.release()
orders.send(f"after the parent released: {server.status().running}")
os.write(done[1], b"x")
os.waitpid(child, 0)
orders.send(f"after both released: {server.status().running}")
server.acquire()
if os.fork() == 0:
    os.read(ready[0], 1)
    os._exit(0)
server.release()
orders.send(f"with a child that never used it: {server.status().running}")
server.acquire()
orders.send(f"and can be started again: {server.status().running}")
os.write(ready[1], b"x")
server.release()
"""


def test_a_forked_child_leaves_its_parents_use_alone_and_can_have_its_own(folder: Path) -> None:
    process = Process(FORK, folder)

    assert [process.hear() for _ in range(5)] == [
        "after the child released: True",
        "after the parent released: True",
        "after both released: False",
        "with a child that never used it: False",
        "and can be started again: True",
    ]
    process.process.join()


def test_a_server_whose_socket_was_deleted_gets_no_second_one_on_the_same_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EmbeddedServer(folder).acquire()
    monkeypatch.setattr(embedded_control, "SILENCE_TIMEOUT_S", 0.2)
    pid = pid_of(folder)
    EmbeddedServer(folder).status().socket.unlink()

    with pytest.raises(EmbeddedServerError, match=rf"runs \(pid {pid}\), but does not answer on .*JOBRUNNER_URL"):
        EmbeddedServer(folder).acquire()
    with pytest.raises(EmbeddedServerError, match=rf"pid {pid}"):
        EmbeddedServer(folder).stop()
    assert EmbeddedServer(folder).status().pid == pid
    assert starts(folder) == 1

    monkeypatch.undo()
    os.kill(pid, signal.SIGTERM)
    assert connect(EmbeddedServer(folder).acquire()).ping()


def test_a_server_that_was_just_killed_and_still_has_its_lock_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedServer(folder)
    server.acquire()
    server.release()
    dying = ExitStack()
    dying.enter_context(turn(folder / "server.lock"))
    monkeypatch.setattr(embedded_locks, "sleep", lambda _: dying.close())

    assert server.stop() is False


def test_a_server_that_hangs_is_reported_with_its_pid_and_used_again_when_it_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedServer(folder)
    server.acquire()  # a server may take longer to start than it is allowed to be silent below
    monkeypatch.setattr(embedded_control, "SILENCE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(embedded_process, "REPLY_TIMEOUT_S", 0.2)
    pid = pid_of(folder)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(EmbeddedServerError, match=rf"runs \(pid {pid}\), but does not answer"):
            server.ensure()
    finally:
        os.kill(pid, signal.SIGCONT)

    monkeypatch.undo()
    assert connect(server.ensure()).ping()
    assert pid_of(folder) == pid


def test_a_large_file_is_waited_for_longer_than_a_silent_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedServer(folder)
    client = connect(server.acquire())
    monkeypatch.setattr(embedded_control, "SILENCE_TIMEOUT_S", 1.0)
    fastest = min(seconds(lambda: client.eval("for i = 1, 1000000 do end", 0)) for _ in range(10))
    server.release()
    # 3 s at the rate just measured. A server that loads answers once per 1,024 commands, so after 1 / 128 of that time:
    # other work on this machine may slow it down fortyfold before it looks silent.
    write_slow_commands(folder, count=131_072, turns=int(1_000_000 / fastest * 3 / 131_072))

    assert seconds(server.acquire) > 1.0
    assert ask(server.status().socket, "GET loaded") == "yes"  # a client would wait for LOADING by itself


def seconds(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def write_slow_commands(folder: Path, count: int, turns: int) -> None:
    def resp(*words: str) -> bytes:
        return f"*{len(words)}\r\n".encode() + b"".join(f"${len(w)}\r\n{w}\r\n".encode() for w in words)

    slow = resp("EVAL", f"for i = 1, {turns} do end", "0")
    (log,) = (folder / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(resp("SELECT", "0") + slow * count + resp("SET", "loaded", "yes"))


def test_damage_in_the_file_is_told_in_one_line_with_a_command_that_repairs_it(folder: Path) -> None:
    server = EmbeddedServer(folder)
    client = connect(server.acquire())
    for number in range(100):
        client.set(f"key{number}", "value")
    server.release()
    (log,) = (folder / "appendonlydir").glob("*.incr.aof")
    content = bytearray(log.read_bytes())
    content[1000:1020] = bytes(20)
    log.write_bytes(content)

    with pytest.raises(EmbeddedServerError, match=r"ended at start: Bad file format .*check-aof --fix") as caught:
        server.acquire()

    assert "\n" not in str(caught.value)
    assert "--url redis://" in str(caught.value)
    assert (server.status().running, server.status().users) == (False, 0)
    repair = str(caught.value).split("`")[1]
    subprocess.run(["bash", "-c", f"echo y | {repair}"], check=True, capture_output=True)
    repaired = connect(server.acquire())
    assert repaired.get("key0") == "value"
    assert repaired.get("key99") is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_and_a_server_with_unwritten_data_is_not_stopped(folder: Path) -> None:
    server, late = EmbeddedServer(folder), EmbeddedServer(folder)
    server.acquire()
    server.release()
    (log,) = (folder / "appendonlydir").glob("*.incr.aof")
    log.unlink()
    log.symlink_to("/dev/full")
    client = connect(server.acquire())
    with suppress(redis.ResponseError):
        client.set("key", "value")

    for refused in (late.acquire, late.stop, server.release):
        with pytest.raises(EmbeddedServerError, match=r"takes no writes: .*No space left.*free some disk space"):
            refused()

    assert EmbeddedServer(folder).status().running


FILL_DISK = """
import sys
from pathlib import Path
from jobrunner.broker.embedded.server import EmbeddedServer
bare, new = Path(sys.argv[1], "bare"), Path(sys.argv[1], "new")
bare.mkdir()
(bare / ".gitignore").touch()
for size in (4096, 1):
    try:
        with Path(sys.argv[1], f"fill{size}").open("wb", buffering=0) as fill:
            while True:
                fill.write(bytes(size))
    except OSError as full:
        print(full)
for folder in (bare, new):
    server = EmbeddedServer(folder)
    try:
        server.acquire()
    except Exception as error:
        print(type(error).__name__, error)
    print(server.stop())
"""


def test_a_server_that_cannot_start_on_a_full_disk_is_explained(tmp_path: Path) -> None:
    own_disk = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = 'mount -t tmpfs -o size=200k tmpfs "$0"'
    if shutil.which("unshare") is None or subprocess.run([*own_disk, mount, tmp_path], stderr=-3).returncode:
        pytest.skip("needs user namespaces to mount a small disk")

    said = subprocess.run(
        [*own_disk, f'{mount} && exec "$@"', tmp_path, sys.executable, "-c", FILL_DISK, tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    errors = [line for line in said.stdout.splitlines() if line.startswith("EmbeddedServerError")]
    assert len(errors) == 2, said
    assert all("No space left on device" in error and "free some disk space" in error for error in errors), said


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")

    for folder in (tmp_path / "s", tmp_path / "s" / "below"):
        with pytest.raises(EmbeddedServerError, match=r"name a folder, not a file .*JOBRUNNER_URL"):
            EmbeddedServer(folder).acquire()


UNPRIVILEGED = """
import os
from pathlib import Path
from jobrunner.broker.embedded.server import EmbeddedServer
if os.getuid() == 0:
    os.setuid(65534)
try:
    EmbeddedServer(Path(folder)).acquire()
except Exception as error:
    orders.send(f"{type(error).__name__}: {error}")
"""


def test_a_folder_that_may_not_be_written_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o500)
    folder.parent.chmod(0o755)

    told = Process(UNPRIVILEGED, folder).hear()

    assert told.startswith("EmbeddedServerError: ")
    assert "Permission denied" in told
    assert "make it writable for this user" in told


def test_a_file_system_without_flock_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(fd: int, mode: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)

    with pytest.raises(EmbeddedServerError, match=r"does not support flock .*local disk"):
        EmbeddedServer(folder).acquire()

    monkeypatch.undo()


def test_a_process_that_holds_the_start_lock_forever_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_locks, "TURN_TIMEOUT_S", 0.1)
    folder.mkdir()

    with (
        turn(folder / "start.lock"),
        pytest.raises(EmbeddedServerError, match=r"another process has held .*start\.lock"),
    ):
        EmbeddedServer(folder).acquire()


def test_users_are_counted_although_a_guard_is_just_looking(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedServer(folder)
    server.acquire()
    looking = ExitStack()
    looking.enter_context(turn(folder / "start.lock"))
    monkeypatch.setattr(embedded_locks, "sleep", lambda _: looking.close())
    counted = server.status().users

    monkeypatch.setattr(embedded_locks, "COUNT_TIMEOUT_S", 0.0)
    with turn(folder / "start.lock"):
        not_counted = server.status().users

    server.release()
    assert counted == (1 if ON_LINUX else None)
    assert not_counted is None


@pytest.mark.skipif(not ON_LINUX, reason="counts in /proc/locks")
def test_users_are_counted_although_a_reading_of_the_locks_leaves_some_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel shows a long list page by page, and locks come and go meanwhile."""
    server = EmbeddedServer(folder)
    server.acquire()
    read_text, shown = Path.read_text, iter(["", "twice", "whole", "whole"])

    def read(path: Path, **options: str) -> str:
        text = read_text(path, **options)
        if path != Path("/proc/locks"):
            return text
        return {"": "", "twice": text * 2, "whole": text}[next(shown)]

    monkeypatch.setattr(Path, "read_text", read)
    counted = server.status().users
    monkeypatch.undo()

    server.release()
    assert counted == 1


def test_a_folder_deleted_under_its_users_gets_a_new_server_that_they_do_not_stop(folder: Path) -> None:
    early = EmbeddedServer(folder)
    early.acquire()
    lost = pid_of(folder)
    shutil.rmtree(folder)
    late = EmbeddedServer(folder)
    late.acquire()

    try:
        early.release()

        assert late.status().running
        assert late.status().pid != lost
    finally:
        os.kill(lost, signal.SIGKILL)
