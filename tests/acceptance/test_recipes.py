"""The pages for users of frameworks and of the pytest plugin, copied out and run as a reader would."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(?:python|ini)\n# (\S+?)(, at its end)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
UNSET = ("JOBRUNNER_URL", "REDIS_URL", "JOBRUNNER_PREFIX", "DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS")
# By its module and not by its entry point, so that a repository that was not installed is tested too.
PLUGIN = ["-p", "no:jobrunner", "-p", "jobrunner.testing.plugin", "-p", "no:cacheprovider"]


def copy_out(page: str, folder: Path) -> list[str]:
    """Writes the files of a page, which name themselves in their first line; those of Django into a new project."""
    if page == "recipes/django.md":
        for words in (("startproject", "shop", "."), ("startapp", "orders")):
            made = run("-m", "django", *words, cwd=folder)
            assert made.returncode == 0, made.stderr
    blocks = FENCE.findall((ROOT / "docs" / page).read_text())
    for name, is_added, text in blocks:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(((folder / name).read_text() if is_added else "") + text)
    return [name for name, _, _ in blocks]


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
        ("testing.md", "embedded", 14),
        pytest.param("testing.md", "fake", 14, marks=pytest.mark.slow),
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


def test_the_classes_of_unittest_run_without_pytest(tmp_path: Path) -> None:
    copy_out("testing.md", tmp_path)
    done = run("-m", "unittest", "test_with_unittest", cwd=tmp_path)
    assert "Ran 3 tests" in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


AFTER_A_DEPLOY = """
from jobrunner.testing import inline

def left() -> int:
    with closing(shop()) as connection:
        return connection.execute("SELECT count(*) FROM outbox").fetchone()[0]

with closing(shop()) as connection, connection:
    connection.execute("INSERT INTO outbox (id, job, params) VALUES ('of-before', 'removed', '{}')")
    stage(connection, "confirm", number=7)
with inline(propagate=False):
    error = relay.enqueue().error
print("RELAY", error.partition(chr(10))[0], left())
with closing(shop()) as connection, connection:
    connection.execute("DELETE FROM outbox WHERE id = 'of-before'")
with inline():
    relay.enqueue()
print("RELAY", left())
"""


def test_a_row_of_a_job_that_is_gone_holds_up_the_outbox_until_it_is_deleted(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "recipes" / "outbox.md").read_text("utf-8")
    first = page.partition("```python\n")[2].partition("```\n")[0]
    ran = run("-c", first + AFTER_A_DEPLOY, cwd=tmp_path)
    told = [line.removeprefix("RELAY ") for line in ran.stdout.splitlines() if line.startswith("RELAY ")]
    assert told == ["KeyError: 'removed' 2", "0"], ran.stderr


def test_djangos_worker_runs_what_a_view_enqueued(tmp_path: Path) -> None:
    copy_out("recipes/django.md", tmp_path)
    place = "from orders.checkout import place_order; place_order('ada@example.org')"
    for words in (("makemigrations", "orders"), ("migrate",), ("shell", "-c", place)):
        made = run("manage.py", *words, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
    worked = run("-m", "jobrunner", "work", "shop.jobs", "--burst", cwd=tmp_path)
    assert worked.returncode == 0, worked.stderr
    read = "import shop.jobs; from orders.models import Order; o = Order.objects.get(); print(o.address, o.confirmed)"
    assert run("-c", read, cwd=tmp_path).stdout == "ada@example.org True\n"


def test_fastapis_dashboard_asks_for_its_token_and_leaves_the_application_as_it_is(tmp_path: Path) -> None:
    copy_out("recipes/fastapi.md", tmp_path)
    (tmp_path / "ask.py").write_text(
        "import os; os.environ['DASHBOARD_TOKEN'] = token = 'correct horse battery staple'\n"
        "from fastapi.testclient import TestClient\n"
        "from web import app\n"
        "with TestClient(app, base_url='http://localhost', follow_redirects=False) as web:\n"
        "    headers = {'accept': 'application/json'}\n"
        "    print(web.get('/jobs/queues', headers=headers).status_code)\n"
        "    print(web.get('/jobs/queues', headers=headers | {'authorization': f'Bearer {token}'}).status_code)\n"
        "    print(web.post('/reports/2026').status_code)\n"
    )
    asked = run("ask.py", cwd=tmp_path)
    assert asked.stdout.splitlines() == ["401", "200", "202"], asked.stderr


def test_a_browser_of_fastapi_that_goes_away_cancels_its_task(tmp_path: Path) -> None:
    copy_out("recipes/fastapi.md", tmp_path)
    (tmp_path / "ask.py").write_text(
        "import asyncio\n"
        "from follow import app\n"
        "from tasks import MakeReport\n"
        "async def follow(task, stays):\n"
        "    gone, body = asyncio.Event(), []\n"
        "    async def receive():\n"
        "        await gone.wait()\n"
        "        return {'type': 'http.disconnect'}\n"
        "    async def send(message):\n"
        "        if message.get('body'):\n"
        "            body.append(message['body'].decode())\n"
        "            stays or gone.set()\n"
        "    path = f'/reports/tasks/{task.id}/events'\n"
        "    scope = {'type': 'http', 'method': 'GET', 'path': path, 'headers': [], 'query_string': b''}\n"
        "    await app(scope, receive, send)\n"
        "    print(repr(''.join(body)), (await task.record()).state)\n"
        "async def main():\n"
        "    async with app.router.lifespan_context(app):\n"
        "        task = await MakeReport(year=2026).aenqueue()\n"
        "        await follow(task, stays=False)\n"
        "        await follow(task, stays=True)\n"
        "asyncio.run(main())\n"
    )
    asked = run("ask.py", cwd=tmp_path)
    first, second = r"'data: null\n\n' cancelled", r"'event: end\ndata: cancelled\n\n' cancelled"
    assert asked.stdout.splitlines() == [first, second], asked.stderr


def test_djangos_staff_uses_the_dashboard_and_nobody_else(tmp_path: Path) -> None:
    copy_out("recipes/django.md", tmp_path)
    (tmp_path / "ask.py").write_text(
        "import re\n"
        "from shop.asgi import application\n"
        "from django.core.management import call_command\n"
        "from django.contrib.auth import get_user_model\n"
        "from starlette.testclient import TestClient\n"
        "call_command('migrate', verbosity=0)\n"
        "for name, staff in (('ann', True), ('bob', False)):\n"
        "    get_user_model().objects.create_user(name, password='correct horse', is_staff=staff)\n"
        "    web = TestClient(application, base_url='http://localhost')\n"
        "    form = re.search('csrfmiddlewaretoken.*?value=\"(.*?)\"', web.get('/admin/login/').text)[1]\n"
        "    given = {'username': name, 'password': 'correct horse', 'csrfmiddlewaretoken': form}\n"
        "    web.post('/admin/login/?next=/admin/', data=given, follow_redirects=False)\n"
        "    print(name, web.get('/jobs/queues', headers={'accept': 'application/json'}).status_code)\n"
        "web = TestClient(application, base_url='http://localhost')\n"
        "print('stranger', web.get('/jobs/queues').status_code)\n"
        "print('others', web.get('/else').status_code)\n"
    )
    asked = run("ask.py", cwd=tmp_path)
    assert asked.stdout.splitlines() == ["ann 200", "bob 401", "stranger 401", "others 404"], asked.stderr
