"""The endpoint of `work --metrics-port`: of this worker, or of a supervisor for all its processes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAddress:
    """Where metrics are served; a port of None: nowhere."""

    host: str
    port: int | None
    token: str = field(default="", repr=False)

    def check(self) -> None:
        """Raises InvalidOption when what serves them is not installed."""
        if self.port is not None and find_spec("prometheus_client") is None:
            raise InvalidOption('--metrics-port needs prometheus_client; pip install "jobrunner[metrics]"')

    @contextmanager
    def serving(self, client: Client, health: Callable[[], tuple[bool, Mapping[str, Any]]]) -> Iterator[None]:
        """Serves within the block."""
        if self.port is None:
            yield
            return
        from jobrunner.metrics.endpoint import MetricsEndpoint

        endpoint = MetricsEndpoint(client, self.host, self.port, health, self.token)
        endpoint.start()
        try:
            yield
        finally:
            endpoint.close()


NOWHERE = MetricsAddress(host="", port=None)
