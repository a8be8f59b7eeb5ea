"""The measure of pages: it finds all of the routing, and what a page costs does not grow with the tasks."""

from statistics import median

import pytest

pytest.importorskip("starlette")

from benchmarks import pages
from jobrunner.client.client import Client
from jobrunner.web.pages import all_pages
from tests.support.server import Server


def _asked(server: Server, tasks: int) -> dict[str, int]:
    """The commands of each page, by its address without the place where a next page begins."""
    with Client(server.url, f"pages-{tasks}") as client:
        pages.fill(client, tasks)
        return {one.what: one.commands for one in pages.ask_pages(client, 1, lambda _: None)}


@pytest.mark.slow
def test_all_pages_are_found_and_their_commands_do_not_grow_with_the_tasks(server: Server) -> None:
    few, many = _asked(server, 500), _asked(server, 5_000)

    assert {page.path for page in all_pages() if "{" not in page.path} - {"/sessions"} <= many.keys()
    assert {what: count for what, count in many.items() if count > pages.MOST_COMMANDS} == {}
    assert median(many.values()) <= median(few.values()) + 2


def test_a_page_that_no_link_leads_to_is_named(server: Server) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Route

    with Client(server.url, "lost") as client:
        app = Starlette(routes=[Route("/flows/{flow}", lambda _: None, name="flow")])

        with pytest.raises(LookupError, match=r"no link leads to these pages: .*flow"):
            pages.found_pages(app, client, lambda _: '<a href="/elsewhere">')


def test_what_is_above_a_target_is_marked() -> None:
    asked = [pages.Asked("/quick", [1.0, 2.0, 900.0], 50), pages.Asked("/slow", [250.0, 201.0, 1.0], 3),
             pages.Asked("/busy", [1.0], 51)]  # fmt: skip

    assert [one.missed for one in asked] == [False, True, True]
    assert [line.split()[0] for line in pages.table_of(asked).text().splitlines()[1:]] == ["/slow", "/quick", "/busy"]
