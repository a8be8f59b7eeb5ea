"""A page shows the beginning of a large payload, and costs no more than that."""

import html
import json
from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.web.pages.json_text import first_parts, json_text


class Counted:
    """A value that counts how often it is encoded."""

    encoded = 0

    def __repr__(self) -> str:
        type(self).encoded += 1
        return "counted"


def test_no_more_of_a_value_is_encoded_than_is_shown() -> None:
    Counted.encoded = 0

    text, is_whole = json_text([Counted()] * 10_000, 100)

    assert (len(text), is_whole) == (100, False)
    assert Counted.encoded < 20


@pytest.mark.parametrize("value", [[], {"a": [1, {"b": None}]}, "text", 5, [[[[1]]]]])
def test_a_short_value_is_whole(value: Any) -> None:
    assert first_parts(value, 10, 20) == (value, True)
    assert json_text(value, 100) == (json.dumps(value, indent=2), True)


def test_the_first_parts_are_counted_on_all_levels_together() -> None:
    assert first_parts({"a": [1, 2], "b": [3, 4], "c": 5}, 6, 20) == ({"a": [1, 2], "b": [3]}, False)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert first_parts([deep, 2], 100, 20)[1] is True


def test_a_page_shows_the_beginning_of_a_large_payload(browse: Callable[..., Any], client: Client) -> None:
    rows = [{"id": number, "token": "hunter2"} for number in range(20_000)]
    task = client.queue("mail").push({"rows": rows})

    page = html.unescape(browse().get(f"/tasks/{task}").text)

    shown = json.dumps({"rows": rows}, indent=2).replace('"hunter2"', '"••••••"')
    assert f"{shown[:20_000]}\n… cut here" in page
    assert "hunter2" not in page
