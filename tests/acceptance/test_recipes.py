"""The pages for users of frameworks and of the pytest plugin, copied out and run as a reader would."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(?:python|ini)\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
UNSET = ("JOBRUNNER_URL", "REDIS_URL", "JOBRUNNER_PREFIX", "DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS")
# By its module and not by its entry point, so that a repository that was not installed is tested too.
PLUGIN = ["-p", "no:jobrunner", "-p", "jobrunner.testing.plugin", "-p", "no:cacheprovider"]


def copy_out(page: str, folder: Path) -> list[str]:
    """Writes the files of a page, which name themselves in their first line."""
    blocks = FENCE.findall((ROOT / "docs" / page).read_text())
    for name, text in blocks:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [name for name, _ in blocks]


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A Python process in the reader's folder."""
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    environment["PYTHONPATH"] = f"{cwd}:{ROOT}"
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize(
    ("page", "server", "tests"),
    [
        ("testing.md", "embedded", 11),
        pytest.param("testing.md", "fake", 11, marks=pytest.mark.slow),
        ("recipes/django.md", "embedded", 3),
        ("recipes/fastapi.md", "embedded", 4),
        pytest.param("recipes/fastapi.md", "fake", 4, marks=pytest.mark.slow),
    ],
)
def test_the_code_of_the_page_passes_its_tests(page: str, server: str, tests: int, tmp_path: Path) -> None:
    names = copy_out(page, tmp_path)
    written = sum((tmp_path / name).read_text().count("def test_") for name in names)
    done = run("-m", "pytest", *PLUGIN, f"--jobrunner-server={server}", cwd=tmp_path)
    assert re.search(rf"\b{tests} passed\b", done.stdout), done.stdout + done.stderr
    assert (done.returncode, written) == (0, tests), done.stdout


def test_djangos_worker_runs_what_a_view_enqueued(tmp_path: Path) -> None:
    copy_out("recipes/django.md", tmp_path)
    made = run(
        "-c",
        "import shop.jobs; from django.core.management import call_command as c; c('migrate', run_syncdb=True)\n"
        "from orders.checkout import place_order; place_order('ada@example.org')",
        cwd=tmp_path,
    )
    assert made.returncode == 0, made.stderr
    worked = run("-m", "jobrunner", "work", "shop.jobs", "--burst", cwd=tmp_path)
    assert worked.returncode == 0, worked.stderr
    read = "import shop.jobs; from orders.models import Order; o = Order.objects.get(); print(o.address, o.confirmed)"
    assert run("-c", read, cwd=tmp_path).stdout == "ada@example.org True\n"


def test_djangos_staff_uses_the_dashboard_and_nobody_else(tmp_path: Path) -> None:
    copy_out("recipes/django.md", tmp_path)
    (tmp_path / "shop" / "urls.py").write_text("urlpatterns = []")
    settings = tmp_path / "shop" / "settings.py"
    settings.write_text(settings.read_text() + "ROOT_URLCONF = 'shop.urls'\nALLOWED_HOSTS = ['*']\n")
    (tmp_path / "ask.py").write_text(
        "from shop.asgi import application\n"
        "from django.core.management import call_command\n"
        "from django.contrib.auth import get_user_model\n"
        "from django.test import Client as Browser\n"
        "from starlette.testclient import TestClient\n"
        "call_command('migrate', run_syncdb=True, verbosity=0)\n"
        "web = TestClient(application)\n"
        "for name, staff in (('ann', True), ('bob', False)):\n"
        "    login = Browser()\n"
        "    login.force_login(get_user_model().objects.create(username=name, is_staff=staff))\n"
        "    cookie = 'sessionid=' + login.cookies['sessionid'].value\n"
        "    page = web.get('/jobs/queues', headers={'cookie': cookie, 'accept': 'application/json'})\n"
        "    print(name, page.status_code)\n"
        "print('stranger', web.get('/jobs/queues').status_code)\n"
        "print('others', web.get('/else').status_code)\n"
    )
    asked = run("ask.py", cwd=tmp_path)
    assert asked.stdout.splitlines() == ["ann 200", "bob 401", "stranger 401", "others 404"], asked.stderr
