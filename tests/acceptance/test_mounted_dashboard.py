"""A dashboard inside another application, served by uvicorn as its reader would serve it."""

import http.client
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import Server

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
PROGRAM = """
import socket, sys

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from jobrunner import Client
from jobrunner.web import Loopback, create_app

dashboard = create_app(Client(sys.argv[1]), auth=Loopback())
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(Starlette(routes=[Mount("/jobs", dashboard)]), log_level="error")
uvicorn.Server(config).run(sockets=[listener])
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_program_with_a_mounted_dashboard_ends_while_tabs_are_open(
    server: Server, sent: signal.Signals
) -> None:
    command = [sys.executable, "-c", PROGRAM, server.url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            tab = http.client.HTTPConnection("127.0.0.1", int(program.stdout.readline()), timeout=30)
            tab.request("GET", "/jobs/live")
            stream = tab.getresponse()
            while not stream.readline().startswith(b"event: tick"):
                pass
            program.send_signal(sent)
            program.wait(30)
        finally:
            program.kill()
