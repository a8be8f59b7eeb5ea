"""An incident, at a small size: each trouble is found in three clicks, and by two commands.

``python -m tests.acceptance.incident`` plays it with 100 000 tasks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.incident.rehearsal import failures, rehearse
from tests.acceptance.incident.scene import incident
from tests.browser.conftest import chromium, serve

__all__ = ["chromium", "serve"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("browser")]


def test_each_trouble_is_found_in_three_clicks_and_by_two_commands(
    chromium: Any,
    serve: Callable[..., str],
    tmp_path: Path,
) -> None:
    from jobrunner.web.app import create_app
    from jobrunner.web.auth import Loopback

    with incident(3000, tmp_path) as played:
        url = serve(create_app(played.client, auth=Loopback()))
        wrong = [one for found in rehearse(played, chromium, url) for one in failures(found)]

    assert wrong == []
