"""Rows of a station as arguments to stage, and the errors for rows that cannot be packed."""

import json

import pyarrow as pa
import pytest

from jobrunner.broker.keys import check_id
from jobrunner.errors import PayloadTooLarge, PipelineError, StationError
from jobrunner.spark.station.output_rows import check_sink
from jobrunner.spark.station.staging import RowRules, digests_of, pack_rows

KINDS = {"_delay": pa.float64(), "_priority": pa.int32()}


def rules(**changes):
    given = {"station": "flights/clean", "targets": {"late": "late", "flights/late": "late"}, "never_full": frozenset(),
             "fan_out": False, "emits_new": False, "checks_payload": False, "payload_limit": 100}  # fmt: skip
    return RowRules(**(given | changes))


FORK = rules(targets={"late": "late", "on_time": "on_time"})


def rows(**columns):
    """Two rows, of items a and b unless said otherwise."""
    given = {"_id": ["a", "b"], "payload": ['{"n":1}', "0"]} | columns
    return pa.record_batch({name: pa.array(values, KINDS.get(name, pa.string())) for name, values in given.items()})


def test_four_words_for_each_row():
    words, ids = pack_rows(rows(), rules(), "batch.0", 0)
    assert words == [b"a", "late", b'{"n":1}', b"", b"b", "late", b"0", b""]
    assert ids == [b"a", b"b"]


def test_what_steers_is_in_the_fourth_word_of_those_rows_alone():
    batch = rows(
        _to=["flights/late", None], _delay=[1.5, None], _priority=[0, None], _headers=['{"by":"x","no":null}', "{}"]
    )
    words, _ = pack_rows(batch, rules(), "batch.0", 0)
    assert json.loads(words[3]) == {"delay_ms": 1500, "priority": 0, "headers": {"by": "x"}}
    assert (words[1], words[5], words[7]) == ("late", "late", b"")


def test_targets_that_are_never_full_take_an_item_all_the_same():
    by = rules(targets=FORK.targets, never_full=frozenset({"late"}))
    words, _ = pack_rows(rows(_to=["late", "on_time"]), by, "", 0)
    assert (json.loads(words[3]), words[7]) == ({"over": 1}, b"")


def test_children_have_ids_made_of_parent_partition_and_place():
    packed = [pack_rows(rows(_id=["a", "a"]), rules(fan_out=True), "batch.0", before)[0] for before in (0, 2, 0)]
    made = {word.encode() if isinstance(word, str) else word for words in packed for word in words[0::4]}
    assert len(made) == 4
    assert packed[0] == packed[2]
    assert all(check_id(one.decode()).endswith("-flights") for one in made)
    assert [json.loads(word) for word in packed[0][3::4]] == [{"new": 1, "parent": "a"}] * 2


def test_rows_without_an_id_are_new_items_without_a_parent():
    words, ids = pack_rows(rows(_id=[None, "b"]), rules(emits_new=True), "batch.0", 0)
    assert (json.loads(words[3]), words[4], words[7]) == ({"new": 1}, b"b", b"")
    assert len(digests_of(ids)) == 1


@pytest.mark.parametrize(
    ("columns", "by", "said"),
    [
        ({"_to": ["late", "lat"]}, FORK, "returned 'lat' in column '_to' of item b: did you mean 'late'?"),
        ({"_to": ["late", None]}, FORK, "returned None in column '_to' of item b: give one of 'late', 'on_time'"),
        ({}, FORK, "returned None in column '_to' of item a: give one of"),
        ({"_delay": [0, -1]}, rules(), "returned -1.0 in column '_delay' of item b: give seconds, from 0 to a"),
        ({"_delay": [0, 1e18]}, rules(), "returned 1e+18 in column '_delay' of item b: give seconds, from 0 to a cent"),
        ({"_delay": [float("inf"), 0]}, rules(), "returned inf in column '_delay' of item a"),
        ({"_priority": [None, 3]}, rules(), "returned 3 in column '_priority' of item b: give 0, 1 or 2"),
        ({"_id": [None, "b"]}, rules(), "without a value in column '_id' (payload {\"n\":1})"),
        ({"_id": [None, "b"]}, rules(fan_out=True), "without a value in column '_id'"),
        ({"payload": ["{no", "1"]}, rules(checks_payload=True), "b'{no' in column 'payload' of item a: no JSON"),
        ({"payload": ["1", "[" * 3000]}, rules(checks_payload=True, payload_limit=9999), "of item b: no JSON"),
        ({"payload": pa.array([b"1", b'"\xff"']).view(pa.string())}, rules(checks_payload=True), "of item b: no JSON"),
    ],
)
def test_an_error_names_the_column_and_the_item(columns, by, said):
    with pytest.raises(PipelineError) as caught:
        pack_rows(rows(**columns), by, "", 0)
    assert "station 'flights/clean' returned" in str(caught.value)
    assert said in str(caught.value)


def test_headers_beyond_the_limit_name_their_item_and_are_not_told_in_full():
    """A hand-out reads the headers of its tasks, and its bound counts payloads alone."""
    large = json.dumps({"trace": "x" * (64 << 10)})
    with pytest.raises(PipelineError, match=r"in column '_headers' of item b: .*64 KiB in all") as caught:
        pack_rows(rows(_headers=["{}", large]), rules(), "", 0)
    assert len(str(caught.value)) < 500


def test_a_payload_beyond_the_limit_names_its_item():
    with pytest.raises(PayloadTooLarge, match="a payload of 101 bytes for item b, more than payload_limit=100"):
        pack_rows(rows(payload=["1", "x" * 101]), rules(), "", 0)


def test_ids_of_new_items_share_no_part_as_there_may_be_millions():
    source = "019aa7c3a5f20001b2c3d4e5f607-flights.3"
    words, _ = pack_rows(rows(_id=[None, None]), rules(emits_new=True), source, 0)

    first, second = words[0], words[4]
    assert check_id(first).endswith("-flights")
    assert first[:16] != second[:16]


async def awaited():
    """Of a sink."""


def generator():
    yield


@pytest.mark.parametrize(("function", "kind"), [(awaited, "coroutine"), (generator, "generator")])
def test_a_sink_that_was_called_and_did_not_run_is_refused(function, kind):
    """As one behind a decorator of the user's own, which is a plain function where it is declared."""
    returned = function()
    with pytest.raises(StationError, match=f"sink 'q/end' returned a {kind}, so nothing of it ran"):
        check_sink("q/end", returned)
    returned.close()
