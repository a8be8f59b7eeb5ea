"""task_page: ids of one state, page by page."""

from jobrunner.broker.calls import search


def page(mail, after=None, count=2, state="waiting"):
    return mail.run(search.page(mail.keys, state, after=after, count=count))


def test_pages_follow_one_another_in_line(mail):
    mail.enqueue("a", "b", "c")

    assert page(mail) == (0, ["a", "b"])
    assert page(mail, after="b") == (2, ["c"])
    assert page(mail, after="c") == (3, [])


def test_a_line_that_is_empty_has_an_empty_first_page(mail):
    assert page(mail) == (0, [])


def test_there_is_no_page_behind_what_is_not_in_line(mail):
    mail.enqueue("a")

    assert page(mail, after="unknown") is None
    assert page(mail, after="a", state="dead") is None
