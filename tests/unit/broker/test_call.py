"""A call is a value: bound by name, packed for the wire, its reply read into a value or an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobrunner.broker import resp
from jobrunner.broker.call import (
    ScriptCommand,
    attempt_to_interpret,
    command,
    interpret,
    resp_args,
)
from jobrunner.broker.calls import leases
from jobrunner.broker.confirmed_writes import to_send_again, written
from jobrunner.broker.keys import Keys
from jobrunner.broker.redis_errors import (
    AuthenticationError,
    BusyLoadingError,
    BusyScriptError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    error_of_reply,
    raise_if_loading,
    server_error,
)
from jobrunner.broker.resp import pack, pack_in_python
from jobrunner.errors import DamagedData, DuplicateTask, OutcomeUnknown, ServerFull, ServerRefused, ServerUnavailable

MAIL = Keys("p").queue("mail")
PURGE = ScriptCommand("purge", int)


def test_arguments_are_bound_by_name_in_the_order_of_the_script():
    call = PURGE.with_keys((b"set", b"counters"), count=7, before="", tasks=b"t:", counter="c", rest=["x"])

    assert list(call.words) == [b"t:", 7, "", "c", "x"]
    said = (b"EVALSHA", PURGE.script.sha, 2, b"set", b"counters", b"42", b"t:", 7, "", "c", "x")
    assert resp_args(call, b"42") == said
    assert resp_args(call, b"", with_source=True)[:2] == (b"EVAL", PURGE.script.source)


def test_keys_of_a_queue_are_picked_by_the_names_of_the_script():
    assert ScriptCommand("queue_counts", int).on(MAIL, tasks=b"t:").keys[:2] == (MAIL.waiting, MAIL.scheduled)
    assert ScriptCommand("extend", int).on(MAIL, tasks=b"t:", queue="mail").keys == (MAIL.pending, MAIL.leases)


def test_an_argument_that_is_missing_or_unknown_is_a_mistake_of_the_caller():
    with pytest.raises(KeyError, match="count"):
        PURGE.with_keys((b"set", b"counters"), tasks=b"t:", before="", counter="c")
    with pytest.raises(TypeError, match=r"lua/purge\.lua takes no argument \['more'\]"):
        PURGE.with_keys((b"set", b"counters"), tasks=b"t:", count=1, before="", counter="c", more=2)


def test_a_script_is_read_at_the_first_use():
    assert ScriptCommand("no such script", int).name == "no such script"
    with pytest.raises(FileNotFoundError):
        ScriptCommand("no such script", int).with_keys(())


def test_a_plain_command_goes_as_it_is():
    assert resp_args(command("GET", b"k", read=int), b"42") == ("GET", b"k")


@given(st.lists(st.one_of(st.binary(), st.text(), st.integers(), st.floats(allow_nan=False)), min_size=1, max_size=20))
def test_words_are_packed_alike_in_c_and_in_python(words):
    assert pack(words) == pack_in_python(words)


def test_no_number_is_left_to_hiredis_which_crashes_when_a_handler_of_a_signal_raises_meanwhile(monkeypatch):
    pytest.importorskip("hiredis")
    packed = []
    monkeypatch.setattr(resp, "_pack_in_c", packed.append)

    pack(["SET", b"key", 7, 1.5, True])

    assert packed == [("SET", b"key", "7", "1.5", "True")]


def test_words_are_packed_as_the_protocol_says():
    assert pack(["SET", b"\0\r\n", 7, 1.5, "é"]) == (
        b"*5\r\n$3\r\nSET\r\n$3\r\n\0\r\n\r\n$1\r\n7\r\n$3\r\n1.5\r\n$2\r\n\xc3\xa9\r\n"
    )


def test_a_reply_is_read_and_an_error_is_raised_or_returned():
    call = command("GET", read=int)

    assert interpret(call, b"7") == 7
    with pytest.raises(ServerRefused):
        interpret(call, ResponseError("ERR no"))
    assert isinstance(attempt_to_interpret(call, ResponseError("ERR no")), ServerRefused)
    assert attempt_to_interpret(call, b"7") == 7


@pytest.mark.parametrize("read", [int, lambda reply: reply.decode(), lambda reply: {}[reply], lambda _: 1 / 0])
def test_what_cannot_be_read_is_told_with_its_key(read):
    call = command("GET", b"p:{mail}:mail:arrival", read=read)

    with pytest.raises(DamagedData, match=r"p:\{mail\}:mail:arrival"):
        interpret(call, b"\xff")
    assert isinstance(attempt_to_interpret(call, b"\xff"), DamagedData)


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (OutOfMemoryError("command not allowed"), ServerFull, "free memory or raise maxmemory"),
        (ResponseError("OOM command not allowed when used memory > 'maxmemory'"), ServerFull, "took nothing"),
        (ResponseError("user_script:1: OOM command not allowed"), ServerFull, "took nothing"),
        (AuthenticationError("WRONGPASS"), ServerRefused, "check user, password and ACL"),
        (NoPermissionError("NOPERM"), ServerRefused, "check user, password and ACL"),
        (NoPermissionError("User BLOOM has no permissions to run the 'get' command"), ServerRefused, "check user"),
        (ResponseError("ERR no such key OOM"), ServerRefused, "no such key OOM$"),
        (ResponseError("ACL failure in script: User u has no permissions to run the 'zadd' command script: x"),
         ServerRefused, "refused this user: .*'zadd' command.*check user, password and ACL"),
        (ResponseError(f"Error running script (call to f_{'0' * 40}): @user_script:9: "
                       "The user executing the script can't run this command or subcommand"),
         ServerRefused, "refused this user: .* check user, password and ACL"),
        (ReadOnlyError("READONLY"), ServerRefused, "READONLY"),
        (error_of_reply("MASTERDOWN Link with MASTER is down"), ServerRefused,
         "is a replica and takes no writes: Link with MASTER is down; the URL must lead to its primary"),
        (ResponseError(f"Error running script (call to f_{'0' * 40}): @user_script:9: @user_script: 9: "
                       "-OOM command not allowed when used memory > 'maxmemory'."), ServerFull, "maxmemory"),
        (error_of_reply("MISCONF Errors writing to the AOF file: No space left on device"), ServerRefused,
         "takes no writes at present: Errors writing .* on device; see its disk and its log"),
        (ResponseError(f"Error running script (call to f_{'0' * 40}): @user_script:9: @user_script: 9: "
                       "-NOREPLICAS Not enough good replicas to write."),
         ServerRefused, "takes no writes at present: .*; attach replicas, or lower min-replicas-to-write"),
        (BusyLoadingError("LOADING"), ServerUnavailable, "does not answer yet: LOADING; wait until it has ended that"),
        (ResponseError("WRONGTYPE\nstack"), ServerRefused, "WRONGTYPE$"),
        (MovedError("5517 h:6379"), ServerRefused, r"one node of a cluster: slot 5517 is at h:6379; .*redis\+cluster://"),
        (ClusterDownError("Hash slot not served"), ServerRefused, r"of a cluster: Hash slot.*redis\+cluster://"),
        (ResponseError("CROSSSLOT Keys in request don't hash to the same slot"), ServerRefused, r"redis\+cluster://"),
        (ResponseError("This instance has cluster support disabled"), ServerRefused, "is no cluster: .* redis:// or"),
    ],
)
def test_an_error_of_the_server_has_its_class_and_says_what_to_do_in_one_line(reply, kind, message):
    error = server_error(reply)

    assert type(error) is kind
    assert "\n" not in str(error)
    with pytest.raises(kind, match=message):
        raise error


@pytest.mark.parametrize("script", [None, PURGE.script], ids=["command", "script"])
def test_no_full_stop_of_the_server_comes_before_the_remedy(script):
    replica = error_of_reply("READONLY You can't write against a read only replica.")

    assert str(server_error(replica, script)).endswith("a read only replica; the URL must lead to its primary")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (command("HGETALL", b"p:{mail}:mail:settings", read=dict), "(HGETALL on p:{mail}:mail:settings)"),
        (command("INFO", "server", read=str), "(INFO)"),
        (PURGE.with_keys((b"p:a", b"p:b"), count=7, before="", tasks=b"t:", counter="c"),
         "(purge.lua on p:a and 1 more key)"),
    ],
)
def test_a_refusal_for_want_of_a_right_names_what_was_asked(call, named):
    """The server does not say which key a user may not access."""
    denied = error_of_reply("NOPERM No permissions to access a key")

    with pytest.raises(ServerRefused) as raised:
        interpret(call, denied)

    assert str(raised.value) == (
        f"the server refused this user: No permissions to access a key {named}; check user, password and ACL of the URL"
    )


def test_a_script_the_server_does_not_know_is_sent_again_with_what_confirms_it():
    purge = PURGE.with_keys((b"set", b"counters"), count=7, before="", tasks=b"t:", counter="c")
    wait = command("WAIT", 1, 5, read=int)
    unknown = NoScriptError("No matching script")

    assert to_send_again([purge, purge, purge], [b"1", unknown, ResponseError("ERR")]) == [1]
    assert to_send_again([purge, purge, wait], [b"1", unknown, 1]) == [1, 2]
    assert to_send_again([purge, wait], [b"1", 1]) == []


def test_a_reserve_that_found_nothing_is_sent_again_with_the_reports_before_it():
    commit, reserve = leases.commit(MAIL, []), leases.reserve(MAIL, 3, token="t")
    nothing = [b"1", b"", b"31", b"30", b"5", 0]
    some = [*nothing, b"id", b"", b"payload", b"1", None]
    unknown = NoScriptError("No matching script")

    assert to_send_again([reserve, commit, reserve], [nothing, unknown, nothing]) == [1, 2]
    assert to_send_again([commit, reserve, reserve], [unknown, some, nothing]) == [0, 2]
    assert to_send_again([commit, reserve], [[], nothing]) == []


def test_calls_that_a_server_read_while_it_was_loading_or_ran_a_long_script_are_sent_again():
    purge = PURGE.with_keys((b"set", b"counters"), count=7, before="", tasks=b"t:", counter="c")

    assert to_send_again([purge, purge, purge], [BusyLoadingError("x"), NoScriptError("x"), b"1"]) == [0, 1]
    assert to_send_again([purge, purge], [b"1", BusyScriptError("x")]) == [1]
    wait = command("WAIT", 1, 100, read=int)
    assert to_send_again([purge, wait], [b"1", BusyScriptError("x")]) == [1]


@pytest.mark.parametrize(
    ("values", "kind", "of_some"),
    [
        ([[], ServerUnavailable("busy")], OutcomeUnknown, True),
        ([ServerUnavailable("busy"), OutcomeUnknown("lost")], OutcomeUnknown, True),
        ([ServerUnavailable("busy"), ServerUnavailable("busy")], ServerUnavailable, False),
        ([[], ServerFull("full"), ServerFull("full")], ServerFull, True),
        ([ServerFull("full"), ServerUnavailable("busy")], ServerFull, False),
        ([[], DuplicateTask("there", "t")], DuplicateTask, False),
    ],
)
def test_the_error_of_writes_says_whether_others_of_them_were_carried_out(values, kind, of_some):
    with pytest.raises(kind) as refused:
        written(values)

    assert type(refused.value) is kind
    assert ("others of the same call may have been added" in str(refused.value)) is of_some


def test_loading_counts_when_nothing_at_all_was_done():
    raise_if_loading([])
    raise_if_loading([b"1", BusyLoadingError("x")])
    with pytest.raises(BusyLoadingError, match="it is loading its data"):
        raise_if_loading([BusyLoadingError("x"), BusyLoadingError("y")])
    with pytest.raises(BusyLoadingError, match="it has run a script for long"):
        raise_if_loading([BusyScriptError("x"), BusyScriptError("y")])
