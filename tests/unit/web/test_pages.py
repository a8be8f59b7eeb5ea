"""Every page: on a server where nothing is, it teaches; whatever names and payloads say, it is text."""

import re

import pytest

from jobrunner.web.routes import all_pages

PLAIN = [page.path for page in all_pages() if "{" not in page.path and page.name not in ("tasks", "dead")]
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


@pytest.mark.parametrize("path", PLAIN)
def test_a_page_of_an_empty_server_is_there_and_teaches(browse, path):
    answer = browse().get(path)

    assert answer.status_code == 200
    assert 'class="empty"' in answer.text or path == "/redis"


@pytest.mark.parametrize("path", PLAIN)
def test_a_page_has_nothing_inline(browse, path):
    text = browse().get(path).text

    assert not re.search(r"<[^>]+\s(style|on\w+)=", text)
    assert not re.search(r"<style|<script(?![^>]*\bsrc=)", text)
    assert len(re.findall(r"<script[^>]*nonce=", text)) == text.count("<script")


@pytest.mark.parametrize("path", PLAIN)
def test_a_page_has_one_heading_a_title_and_marks_where_one_is(browse, path):
    text = browse().get(path).text

    assert text.count("<h1") == 1
    assert re.search(r"<title>\w+ · jobrunner</title>", text)
    assert text.count('aria-current="page"') == 1


@pytest.mark.parametrize(
    "path", ["/queues/nowhere", "/queues/a/b/c", "/tasks/none?queue=mail", "/tasks/none", "/pipelines/none"]
)
def test_what_is_not_there_is_said(browse, path):
    assert browse().get(path).status_code == 404


def test_a_program_gets_the_values_of_a_page(browse, client):
    client.queue("mail").push({"n": 1})

    found = browse().get("/queues", headers={"accept": "application/json"}).json()

    assert [(queue["name"], queue["waiting"]) for queue in found["queues"]] == [("mail", 1)]


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_theme_that_was_chosen_is_there_from_the_first_paint(browse, theme):
    browser = browse()
    browser.cookies["jobrunner_theme"] = theme

    assert f'data-theme="{theme}"' in browser.get("/").text


def test_a_theme_of_somebody_s_making_is_left_out(browse):
    browser = browse()
    browser.cookies["jobrunner_theme"] = "x><script>"

    assert "data-theme" not in browser.get("/").text
