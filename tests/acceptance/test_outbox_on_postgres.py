"""The outbox table of docs/recipes/outbox.md on a PostgreSQL server, with the code of the page."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import binaries, postgres

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("postgres")]

PAGE = (Path(__file__).parents[2] / "docs" / "recipes" / "outbox.md").read_text("utf-8")
QUIET = "import structlog; structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))\n"
APPLICATION = """
with closing(shop()) as connection:
    connection.execute(TABLE)
    with connection.transaction():
        for number in range(800):
            stage(connection, "confirm", number=number)
    try:
        with connection.transaction():
            stage(connection, "confirm", number=5000)
            raise ValueError("the card was declined")
    except ValueError:
        pass
    JOBS["confirm"] = None
    try:
        send(connection)
    except AttributeError:
        JOBS["confirm"] = confirm
    print(connection.execute("SELECT count(*) FROM outbox").fetchone()[0], "rows are kept when they cannot be sent")
relay.enqueue()
Worker(queues=["outbox"], concurrency=1).run(burst=True)    # the first tick may come beside the run by hand
with closing(shop()) as connection:
    print(connection.execute("SELECT count(*) FROM outbox").fetchone()[0], "rows are left")
sent = [json.loads(task.payload)["number"] for task in Client().queue("mail").tasks("waiting", limit=1000)]
print(sent == [*range(800)])
"""


def test_rows_are_moved_in_their_order_and_none_is_lost_or_left(shell: Any) -> None:
    if (found := binaries()) is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    (table,) = re.findall(r"^```sql\n(create table outbox.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    first, _, on_postgres = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    shared = first.partition("STAGED = ")[0]
    program = f"{QUIET}from jobrunner import Client\nTABLE = {table!r}\n{shared}\n{on_postgres}\n{APPLICATION}"

    with postgres(found) as where:
        ran = subprocess.run(
            [sys.executable, shell.write("example.py", program)],
            cwd=shell.folder,
            env=shell.environment | {"DATABASE_URL": where},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert ran.stdout.splitlines() == [
        "800 rows are kept when they cannot be sent", "0 rows are left", "True",
    ], ran.stderr  # fmt: skip
