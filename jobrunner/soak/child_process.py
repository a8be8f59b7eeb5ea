"""What the processes beside the workers share: their settings, and that they end when told to or when left alone."""

import os
import signal
import threading
from dataclasses import asdict, dataclass

import msgspec

SETTINGS = "_JOBRUNNER_SOAK_SETTINGS"
"""The variable that holds the settings as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """What these processes are told."""

    rate: float
    """Tasks a second."""
    keepalive: float
    """Seconds of a lease."""
    task_s: float
    """Seconds that a task takes, on average."""

    def text(self) -> str:
        """As the variable holds it."""
        return msgspec.json.encode(asdict(self)).decode()


def settings_here() -> ChildSettings:
    """Of this process."""
    return msgspec.json.decode(os.environ[SETTINGS], type=ChildSettings)


def asked_to_stop() -> threading.Event:
    """Set at SIGTERM, and when standard input ends: whoever started this process is no more."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        while os.read(0, 1):
            pass
        stop.set()

    threading.Thread(target=wait, name="jobrunner-lifeline", daemon=True).start()
    return stop
