"""The endpoint of `jobrunner work --metrics-port`: /metrics, with the metrics that jobs define themselves, and /health
and /ready for containers."""

import base64
import hmac
import ipaddress
import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption, JobrunnerError
from jobrunner.inspector.snapshot import latency_ms
from jobrunner.logs import SafeLogger
from jobrunner.metrics.application import ApplicationMetrics
from jobrunner.metrics.exposition import CONTENT_TYPE, Scrapes

Health = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Whether the process is well, and what to say of it."""
_REQUEST_S = 10.0
_JSON = "application/json"
_NO_CLIENT = "no worker has started yet, so its server is not known"
_log = SafeLogger("jobrunner.metrics")


class MetricsEndpoint:
    """Serves from threads of its own. `/health` answers 200 as long as the process is well, without asking the server;
    `/ready` asks it as well. Until `use` gives it a client, all but `/health` answer 503. Port 0: any that is free;
    `url` tells."""

    def __init__(self, client: Client | None, host: str, port: int, health: Health, token: str = "") -> None:
        self._client = client
        self._scrapes = None if client is None else Scrapes(client)
        self._application = ApplicationMetrics()
        self._token = token.encode()
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
        if not token and not _is_loopback(host):
            _log.warning("metrics are served to every client of this address; set --metrics-token", host=host)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}"

    def start(self) -> None:
        """Begins to answer."""
        threading.Thread(target=self._server.serve_forever, name="jobrunner-metrics", daemon=True).start()
        _log.info("metrics are served", url=f"{self.url}/metrics")

    def use(self, client: Client) -> None:
        """Asks the server of this client from now on."""
        self._client, self._scrapes = client, Scrapes(client)

    def close(self) -> None:
        """Answers no more."""
        self._server.shutdown()
        self._server.server_close()

    def _say_metrics(self) -> tuple[int, str, bytes]:
        if (scrapes := self._scrapes) is None:
            return 503, "text/plain; charset=utf-8", f"{_NO_CLIENT}\n".encode()
        status, body = scrapes.answer()
        if status != 200:
            return status, "text/plain; charset=utf-8", body
        return status, CONTENT_TYPE, body + self._application.text()

    def _say_health(self) -> tuple[int, str, bytes]:
        is_well, report = self._health()
        return (200 if is_well else 503), _JSON, _json({"status": "ok" if is_well else "failing", **report})

    def _say_ready(self) -> tuple[int, str, bytes]:
        status, kind, body = self._say_health()
        if status != 200:
            return status, kind, body
        if (client := self._client) is None:
            return 503, _JSON, _json({"status": "no server", "error": _NO_CLIENT})
        if waits_for := self._health()[1].get("waits"):  # a server whose disk is full answers, and takes no worker
            return 503, _JSON, _json({"status": "no server", "error": waits_for})
        try:
            latency_ms(client)
        except JobrunnerError as error:
            return 503, _JSON, _json({"status": "no server", "error": str(error)})
        return 200, kind, body

    def _may(self, headers: Message) -> bool:
        """Whether a request has the token, as a bearer's or as the password of basic auth."""
        if not self._token:
            return True
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        words = given.strip().encode()
        if scheme.lower() == "basic":
            with suppress(ValueError):
                words = base64.b64decode(words).partition(b":")[2]
        return scheme.lower() in ("basic", "bearer") and hmac.compare_digest(words, self._token)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        routes, may = self._routes, self._may

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_S

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                route = routes.get(path)
                status, kind, body = 404, "text/plain", b"/metrics, /health or /ready\n"
                if path == "/metrics" and not may(self.headers):
                    status, body = 401, b"this needs the token of --metrics-token\n"
                elif route:
                    status, kind, body = route()
                self.send_response(status)
                if status == 401:
                    self.send_header("WWW-Authenticate", 'Bearer realm="jobrunner"')
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815

            def send_response(self, code: int, message: str | None = None) -> None:
                """Without a Server header, which tells strangers the version of Python."""
                self.send_response_only(code, message)
                self.send_header("Date", self.date_time_string())

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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _json(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"
