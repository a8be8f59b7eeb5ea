"""The endpoint of `jobrunner work --metrics-port`: /metrics, and /health and /ready for containers."""

import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from jobrunner.broker.calls.server import ping
from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption, JobrunnerError
from jobrunner.logs import OwnLog
from jobrunner.metrics.exposition import CONTENT_TYPE, answer

Health = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Whether the process is well, and what to say of it."""
_REQUEST_S = 10.0
_JSON = "application/json"
_log = OwnLog("jobrunner.metrics")


class Endpoint:
    """Serves from threads of its own. `/health` answers 200 as long as the process is well, without asking the server;
    `/ready` asks it as well. Port 0: any that is free; `url` tells."""

    def __init__(self, client: Client, host: str, port: int, health: Health) -> None:
        self._client = client
        self._health = health
        self._routes: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/metrics": self._say_metrics,
            "/health": self._say_health,
            "/ready": self._say_ready,
        }
        try:
            self._server = _Server(host, port, self._handler())
        except OSError as error:
            raise InvalidOption(
                f"cannot listen on {host} port {port}: {error.strerror}; choose another --metrics-port"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}"

    def start(self) -> None:
        """Begins to answer."""
        threading.Thread(target=self._server.serve_forever, name="jobrunner-metrics", daemon=True).start()
        _log.info("metrics are served", url=f"{self.url}/metrics")

    def close(self) -> None:
        """Answers no more."""
        self._server.shutdown()
        self._server.server_close()

    def _say_metrics(self) -> tuple[int, str, bytes]:
        status, body = answer(self._client)
        return status, CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8", body

    def _say_health(self) -> tuple[int, str, bytes]:
        is_well, said = self._health()
        return (200 if is_well else 503), _JSON, _json({"status": "ok" if is_well else "failing", **said})

    def _say_ready(self) -> tuple[int, str, bytes]:
        status, kind, body = self._say_health()
        if status != 200:
            return status, kind, body
        try:
            self._client.broker.run(ping())
        except JobrunnerError as error:
            return 503, _JSON, _json({"status": "no server", "error": str(error)})
        return 200, kind, body

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        routes = self._routes

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_S

            def do_GET(self) -> None:
                route = routes.get(self.path.partition("?")[0])
                status, kind, body = route() if route else (404, "text/plain", b"/metrics, /health or /ready\n")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: a scrape is no news."""

        return Handler


class _Server(ThreadingHTTPServer):
    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # that of HTTPServer asks for the name of the host, which a name server may delay

    def handle_error(self, *_: object) -> None:
        error = sys.exception()
        _log.warning("a request was not answered", error=f"{type(error).__name__}: {error}")


def _json(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"
