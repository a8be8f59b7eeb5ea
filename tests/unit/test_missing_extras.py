"""An import of a part whose extra is not installed names the extra; parts without a missing package stay importable."""

import subprocess
import sys

import pytest

from jobrunner.formatting import require_extra

BY_REDIS_PY = """
import asyncio
from jobrunner import AsyncClient, Client
from jobrunner.errors import ServerUnavailable

async def ask():
    async with AsyncClient("redis://127.0.0.1:1", retry_timeout=0) as client:
        await client.queue("mail").counts()

Client("rediss://host").close()
Client("redis://host?socket_keepalive=1").close()
try:
    asyncio.run(ask())
except ServerUnavailable:
    print("it tried")
"""
BLOCKED = "import sys; sys.modules[{package!r}] = None\n{code}"


def run_without(package: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process in which an import of the package fails."""
    words = [sys.executable, "-c", BLOCKED.format(package=package, code=code)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("package", "code", "extra"),
    [
        ("starlette", "from jobrunner.web import create_app", "web"),
        ("jinja2", "from jobrunner.web import Token", "web"),
        ("starlette", "from jobrunner.web.app import create_app", "web"),
        ("prometheus_client", "import jobrunner.metrics.exposition", "metrics"),
        ("fsspec", "from jobrunner import Client; Client('redis://host', payload_store='file:///srv')", "store"),
        ("opentelemetry", "from jobrunner.tracing import instrument; instrument()", "otel"),
        ("rich", "sys.argv = ['jobrunner', 'top']; from jobrunner.__main__ import main; main()", "top"),
    ],
)
def test_an_import_without_its_extra_names_the_extra(package: str, code: str, extra: str) -> None:
    done = run_without(package, code)

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert package in last
    assert last.endswith(f'pip install "jobrunner-queue[{extra}]"')


def test_the_core_and_tracing_are_imported_without_any_extra() -> None:
    for package in ("starlette", "prometheus_client", "opentelemetry"):
        done = run_without(package, "import jobrunner, jobrunner.tracing; jobrunner.job")
        assert done.returncode == 0, done.stderr


def test_tls_options_of_a_url_and_coroutines_need_no_hiredis() -> None:
    """Without it the connections of redis-py 8 refuse what their pools give them for notifications of maintenance."""
    done = run_without("hiredis", BY_REDIS_PY)
    assert done.stdout == "it tried\n", done.stderr


def test_every_command_has_its_help_without_any_extra() -> None:
    absent = ("rich", "starlette", "jinja2", "prometheus_client", "pyarrow", "pyspark", "opentelemetry", "fsspec")
    code = "from jobrunner.cli.main import COMMANDS, jobrunner\nfor name in COMMANDS: jobrunner.get_command(None, name)"
    done = run_without("uvicorn", f"sys.modules |= dict.fromkeys({absent})\n{code}")
    assert done.returncode == 0, done.stderr


def test_an_extra_that_is_there_is_no_error_and_the_missing_package_is_named() -> None:
    require_extra("jobrunner.web", "web", "sys", "json")
    with pytest.raises(ModuleNotFoundError) as caught:
        require_extra("jobrunner.web", "web", "json", "no_such_package_of_ours")
    assert caught.value.name == "no_such_package_of_ours"
