"""Reports to systemd for a unit with `Type=notify`: that the service is ready, and with `WatchdogSec=` that it is
alive.

Each report is a datagram to the socket that NOTIFY_SOCKET names, as sd_notify(3) describes. STOPPING=1 is not sent,
because a worker restarting on SIGHUP stops, too, and systemd would kill it for not ending.
"""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

_LOOKS_EVERY_S = 0.1


class ServiceReports:
    """Sends READY=1 once `is_ready`, and WATCHDOG=1 twice in each period of the watchdog in which it `is_alive`. The
    thread that sends ends with the process."""

    def __init__(self, is_ready: Callable[[], bool], is_alive: Callable[[], bool]) -> None:
        self._is_ready, self._is_alive = is_ready, is_alive
        self._address = os.environ["NOTIFY_SOCKET"]
        if self._address.startswith("@"):  # an abstract socket
            self._address = f"\0{self._address[1:]}"
        is_watched = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        period_us = os.environ.get("WATCHDOG_USEC", "")
        self._every_s = int(period_us) / 2e6 if is_watched and period_us.isdecimal() else 0.0

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._run, name="jobrunner-systemd", daemon=True).start()

    def _run(self) -> None:
        rest = threading.Event()
        while not self._is_ready():
            rest.wait(_LOOKS_EVERY_S)
        self._send("READY=1")
        while self._every_s:
            if self._is_alive():
                self._send("WATCHDOG=1")
            rest.wait(self._every_s)

    def _send(self, state: str) -> None:
        # Opened for each report, as a job may close descriptors of the process; without systemd the report is lost.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
            there.sendto(state.encode(), self._address)
