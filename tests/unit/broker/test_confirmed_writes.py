"""A confirmation of WAITAOF that is believed at once, and one that the client waits a second for."""

from typing import Any

import pytest

from jobrunner.broker.call import Call, command, waits_for_disk
from jobrunner.broker.confirmed_writes import confirmation_marks, outlast_sync

_WROTE = command("ZADD", b"p:{q}:waiting", 1, "a", read=int)
_WAITAOF = command("WAITAOF", 1, 0, 100, read=lambda reply: reply)
_CALLS = [_WROTE, *confirmation_marks([_WROTE], everywhere=False), _WAITAOF]
_VALKEY: Any = [b"server", b"valkey", b"version", b"9.1.2"]
_EVERYSEC: Any = [b"appendfsync", b"everysec"]
_QUIET = b"aof_rewrites:1\r\naof_delayed_fsync:0\r\n"
_REWRITTEN = b"aof_rewrites:2\r\naof_delayed_fsync:0\r\n"
_OK, _YES, _NO = b"OK", [1, 0], [0, 0]


def run(*replies: list[Any], calls: list[Call[Any]] = _CALLS, first: Any = _YES) -> tuple[Any, list[str]]:
    """The result with these replies, and what was done for it."""
    steps, left, done = outlast_sync(calls, first), list(replies), list[str]()
    try:
        step = next(steps)
        while True:
            is_pause = isinstance(step, float)
            done.append("pause" if is_pause else " ".join(str(call.words[0]) for call in step))  # type: ignore[union-attr]
            step = steps.send([] if is_pause else left.pop(0))
    except StopIteration as over:
        assert not left
        return over.value, done


_ASKED = "HELLO CONFIG INFO"
_ROUND = ["pause", "SET", "SET WAITAOF", "SET WAITAOF", "INFO"]


@pytest.mark.parametrize(
    ("server", "policy"),
    [
        (_VALKEY, [b"appendfsync", b"always"]),
        ({b"server": b"valkey", b"version": b"9.1.2"}, {b"appendfsync": b"always"}),
        ([b"server", b"redis", b"version", b"7.2.4"], _EVERYSEC),
        ([b"server", b"redis", b"version", b"8.0.0"], _EVERYSEC),
    ],
)
def test_it_is_believed_where_it_is_right(server: Any, policy: Any) -> None:
    assert run([server, policy, _QUIET]) == (_YES, [_ASKED])


@pytest.mark.parametrize(
    ("server", "policy", "info"),
    [
        (_VALKEY, _EVERYSEC, _QUIET),
        ([b"server", b"redis", b"version", b"7.4.1"], _EVERYSEC, _QUIET),
        ([b"server", b"valkey", b"version", b"8.0.0"], _EVERYSEC, _QUIET),
        (_VALKEY, RuntimeError("NOPERM"), RuntimeError("NOPERM")),
        (RuntimeError("NOPERM"), RuntimeError("NOPERM"), _QUIET),
    ],
)
def test_elsewhere_a_sync_has_to_begin_and_end_after_the_write(server: Any, policy: Any, info: Any) -> None:
    assert run([server, policy, info], [_OK], [_OK, _YES], [_OK, _YES], [info]) == (_YES, [_ASKED, *_ROUND])


def test_a_rewrite_meanwhile_begins_it_anew() -> None:
    round_ = ([_OK], [_OK, _YES], [_OK, _YES])

    found = run([_VALKEY, _EVERYSEC, _QUIET], *round_, [_REWRITTEN], *round_, [_REWRITTEN])

    assert found == (_YES, [_ASKED, *_ROUND, *_ROUND])


def test_after_three_rewrites_it_is_not_confirmed() -> None:
    rounds = [one for n in (1, 2, 3) for one in ([_OK], [_OK, _YES], [_OK, _YES], [b"aof_rewrites:%d\r\n" % n])]

    assert run([_VALKEY, _EVERYSEC, b"aof_rewrites:0\r\n"], *rounds) == (_NO, [_ASKED, *_ROUND * 3])


def test_what_is_not_confirmed_at_first_or_later_stays_so() -> None:
    assert run(first=_NO) == (_NO, [])
    asked = [_VALKEY, _EVERYSEC, _QUIET]
    assert run(asked, [_OK], [_OK, _NO])[0] == _NO
    assert run(asked, [_OK], [_OK, _YES], [_OK, _NO])[0] == _NO


def test_a_mark_that_the_server_refuses_confirms_nothing() -> None:
    full = RuntimeError("OOM")
    assert run([_VALKEY, _EVERYSEC, _QUIET], [full])[0] is full
    assert run([_VALKEY, _EVERYSEC, _QUIET], [_OK], [full, _YES])[0] is full


def test_only_waitaof_is_doubted() -> None:
    assert waits_for_disk(_CALLS)
    assert not waits_for_disk([_WROTE, command("WAIT", 1, 100, read=int)])
