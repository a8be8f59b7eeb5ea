"""A standalone cluster of Spark on this machine, the processes below a process, and a machine without Java."""

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import pyspark

from jobrunner.spark.java import find_java, home_of
from tests.support.ports import free_port
from tests.support.waiting import wait_for

LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}


class Cluster:
    """A master and workers of Spark's own on the loopback."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._run("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        wait_for(lambda: _listens(port), timeout_s=60)
        for number in range(workers):
            work = str(folder / f"work{number}")
            self._run("worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                      "--work-dir", work, self.url)  # fmt: skip

    def executors(self) -> list[int]:
        """Process ids of the JVMs that run tasks."""
        return [pid for worker in self._processes[1:] for pid in descendants(worker.pid)
                if "CoarseGrainedExecutorBackend" in command_of(pid)]  # fmt: skip

    def stop(self) -> None:
        """Ends it with all its executors."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def _run(self, name: str, *words: str) -> None:
        home = Path(pyspark.__file__).parent
        with home_of(find_java(os.environ)) as java_home, (self._folder / "cluster.log").open("ab") as log:
            command = [str(java_home / "bin" / "java"), "-Xmx512m", "-cp", f"{home}/jars/*"]
            own = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "PYTHONPATH": ""}
            environment = os.environ | LOOPBACK | own
            full = [*command, f"org.apache.spark.deploy.{name}", *words]
            self._processes.append(
                subprocess.Popen(full, env=environment, stdout=log, stderr=log, start_new_session=True)
            )


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, open_ = [], [pid]
    while open_:
        below = children.get(open_.pop(), [])
        found += below
        open_ += below
    return sorted(found)


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ")
    return ""


def path_without_java(folder: Path) -> str:
    """A PATH, made in that folder, of the tools that Spark's own scripts call, and of no Java."""
    folder.mkdir()
    for name in ("sh", "bash", "env", "dirname", "ps", "cat", "uname", "chmod"):
        found = next((place / name for place in (Path("/bin"), Path("/usr/bin")) if (place / name).exists()), None)
        if found is not None:
            (folder / name).symlink_to(found)
    return str(folder)
