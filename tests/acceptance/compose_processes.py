"""The services of docs/deploy/compose.yml as plain processes of this machine, where there is no Docker.

What a container gives is replaced: the network by 127.0.0.1, the name `server` by its address, the ports of containers
by free ones, the image's programs by those of PATH. Commands, environment and health checks are those of the file.
"""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.support.ports import free_port
from tests.support.server import server_binary
from tests.support.waiting import wait_for

HEALTHY_WITHIN_S = 90.0


class Deployment:
    """Processes by the name of their service, in the folder of a project with compose.yml and .env."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, dict(environment)
        lines = (folder / ".env").read_text("utf-8").splitlines()
        self.variables = dict(line.split("=", 1) for line in lines if "=" in line)
        self._services: dict[str, Any] = yaml.safe_load(self._substituted((folder / "compose.yml").read_text("utf-8")))[
            "services"
        ]
        self._ports = {name: free_port() for name in self._services}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def dashboard(self) -> str:
        """The address that the file publishes as http://127.0.0.1:8080."""
        return f"http://127.0.0.1:{self._ports['dashboard']}"

    def environment_of(self, name: str) -> dict[str, str]:
        """The variables of a container, for `docker compose exec`."""
        given = self._services[name].get("environment", {})
        at = f"@127.0.0.1:{self._ports['server']}"
        return self._environment | {key: str(value).replace("@server:6379", at) for key, value in given.items()}

    def up(self) -> None:
        """`docker compose up --detach`: starts each service, the server first, and waits until all are healthy."""
        for name in sorted(self._services, key=lambda name: bool(self._services[name].get("depends_on"))):
            with ExitStack() as opened:
                log = opened.enter_context((self._folder / f".{name}.log").open("w"))
                self.processes[name] = subprocess.Popen(
                    self._command(name), cwd=self._folder, env=self.environment_of(name), stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log,
                )  # fmt: skip
            if "server" in self.processes and name == "server":
                self._until_healthy(name)
        for name in self._services:
            self._until_healthy(name)

    def down(self) -> dict[str, int]:
        """`docker compose down`: SIGTERM to all but the server, then to it; the exit codes."""
        codes = {}
        for name in sorted(self.processes, key=lambda name: name == "server"):
            process = self.processes[name]
            process.terminate()
            grace = float(self._services[name].get("stop_grace_period", "10s").removesuffix("s"))
            try:
                codes[name] = process.wait(grace)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        return codes

    def _command(self, name: str) -> list[str]:
        words, port = [str(word) for word in self._services[name]["command"]], str(self._ports[name])
        if name == "server":
            data = self._folder / ".data"
            data.mkdir(exist_ok=True)
            return [str(server_binary()), *words[1:], "--port", port, "--bind", "127.0.0.1", "--dir", str(data)]
        at = words.index("--metrics-port" if "--metrics-port" in words else "--port") + 1
        program = shutil.which(words[0], path=self._environment.get("PATH", os.environ["PATH"]))
        return [program or words[0], *words[1:at], port, *words[at + 1 :]]

    def _until_healthy(self, name: str) -> None:
        check = self._services[name]["healthcheck"]["test"]
        if name == "server":
            address = ("127.0.0.1", self._ports[name])
            wait_for(lambda: self._answers(address) or self._is_dead(name), timeout_s=HEALTHY_WITHIN_S)
        else:
            port = self._ports[name]
            words = [re.sub(r"(127\.0\.0\.1):\d+", rf"\1:{port}", word) for word in check[1:]]
            wait_for(
                lambda: (
                    self._is_dead(name)
                    or not subprocess.run(words, env=self._environment, capture_output=True, check=False).returncode
                ),
                timeout_s=HEALTHY_WITHIN_S,
            )
        assert not self._is_dead(name), f"{name}: {(self._folder / f'.{name}.log').read_text('utf-8')}"

    def _is_dead(self, name: str) -> bool:
        return self.processes[name].poll() is not None

    @staticmethod
    def _answers(address: tuple[str, int]) -> bool:
        try:
            socket.create_connection(address, timeout=1).close()
        except OSError:
            return False
        return True

    def _substituted(self, text: str) -> str:
        """Variables of .env in place of ``${NAME:?message}``; ``$$`` is a dollar sign."""
        return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: self.variables[found[1]], text).replace("$$", "$")
