"""The seal itself: what it opens, what it refuses, and which key it takes."""

import base64
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobrunner.errors import InvalidOption, KeyMissing, NotSealed, SealBroken
from jobrunner.seal import Bound, Seal, is_encrypted, is_sealed, open_payload, open_result, open_values

OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
MINE = Bound("id-1", "mail", "tag")


@pytest.fixture(params=["encrypt", "sign"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("raw", [b"", b"{}", os.urandom(1 << 20), b"\x00\xff aes:"])
@pytest.mark.parametrize("encoding", ["", "json"])
def test_what_was_closed_opens_as_it_was(kind: str, raw: bytes, encoding: str) -> None:
    seal = Seal([OLD], kind=kind)

    stored, stored_as = seal.close(raw, encoding, MINE)

    assert seal.open(stored, stored_as.encode(), MINE) == (raw, encoding.encode())
    assert is_sealed(stored_as.encode())
    assert is_encrypted(stored_as.encode()) is (kind == "encrypt")


def test_ciphertext_tells_nothing_and_never_is_the_same_and_a_signed_payload_is_as_it_was() -> None:
    encrypting, signing = Seal([OLD]), Seal([OLD], kind="sign")

    stored = {encrypting.close(b"secret" * 9, "json", MINE)[0] for _ in range(100)}

    assert len(stored) == 100
    assert not [one for one in stored if b"secret" in one or len(one) != 54 + 40]
    assert signing.close(b"secret", "json", MINE)[0] == b"secret"


@pytest.mark.parametrize(
    "other",
    [MINE._replace(id="id-2"), MINE._replace(type="pay"), MINE._replace(tag="gat"), Bound("id-1mail", "", "tag")],
)
def test_a_seal_does_not_fit_another_task(kind: str, other: Bound) -> None:
    seal = Seal([OLD], kind=kind)
    stored, stored_as = seal.close(b"x", "json", MINE)

    with pytest.raises(SealBroken, match="another task"):
        seal.open(stored, stored_as.encode(), other)
    with pytest.raises(SealBroken):
        seal.open_result(seal.close_result(b"1", MINE), other)


@given(data=st.data())
def test_no_changed_byte_goes_unseen(data: st.DataObject) -> None:
    seal = Seal([OLD], kind=data.draw(st.sampled_from(["encrypt", "sign"])))
    stored, stored_as = seal.close(data.draw(st.binary(max_size=40)), "json", MINE)
    parts = [stored, stored_as.encode()]
    which = data.draw(st.sampled_from([n for n in (0, 1) if parts[n]]))
    at = data.draw(st.integers(0, len(parts[which]) - 1))
    changed = bytearray(parts[which])
    changed[at] ^= data.draw(st.integers(1, 255))
    parts[which] = bytes(changed)

    try:
        opened = Seal([OLD], required=True).open(parts[0], parts[1], MINE)
    except (SealBroken, KeyMissing, NotSealed):
        return
    raise AssertionError(f"{parts} was opened as {opened}")


def test_a_payload_that_says_it_is_shorter_than_any_ciphertext_is_refused() -> None:
    seal = Seal([OLD])
    _, stored_as = seal.close(b"", "", MINE)

    with pytest.raises(SealBroken):
        seal.open(b"short", stored_as.encode(), MINE)


def test_keys_change_one_after_the_other(kind: str) -> None:
    before, both, after = Seal([OLD], kind=kind), Seal([NEW, OLD], kind=kind), Seal([NEW], kind=kind)
    old, new = before.close(b"x", "", MINE), both.close(b"x", "", MINE)

    assert both.open(old[0], old[1].encode(), MINE)[0] == b"x"
    assert after.open(new[0], new[1].encode(), MINE)[0] == b"x"
    with pytest.raises(KeyMissing, match="payload_keys"):
        after.open(old[0], old[1].encode(), MINE)
    with pytest.raises(KeyMissing):
        before.open(new[0], new[1].encode(), MINE)


def test_either_kind_opens_what_the_other_closed() -> None:
    signing, encrypting = Seal([OLD], kind="sign"), Seal([OLD], required=True)

    for one, other in ((signing, encrypting), (encrypting, signing)):
        stored, stored_as = one.close(b"x", "json", MINE)
        assert other.open(stored, stored_as.encode(), MINE) == (b"x", b"json")


def test_plain_is_accepted_unless_it_is_refused() -> None:
    lenient, strict = Seal([OLD]), Seal([OLD], required=True)

    assert lenient.open(b"x", b"json", MINE) == (b"x", b"json")
    assert lenient.open_result(b"1", MINE) == b"1"
    assert strict.open_result(b"", MINE) == b""
    with pytest.raises(NotSealed):
        strict.open(b"x", b"json", MINE)
    with pytest.raises(NotSealed):
        strict.open_result(b"1", MINE)


def test_without_keys_what_is_sealed_is_an_error_that_says_which_setting_lacks(kind: str) -> None:
    seal = Seal([OLD], kind=kind)
    stored, stored_as = seal.close(b"x", "", MINE)

    with pytest.raises(KeyMissing, match="JOBRUNNER_PAYLOAD_KEYS"):
        open_payload(None, stored, stored_as.encode(), MINE)
    with pytest.raises(KeyMissing, match="JOBRUNNER_PAYLOAD_KEYS"):
        open_result(None, seal.close_result(b"1", MINE), MINE)
    assert open_payload(None, b"x", None, MINE) == (b"x", b"")


def test_results_that_a_flow_brings_are_opened_wherever_they_are(kind: str) -> None:
    seal = Seal([OLD], kind=kind)
    one, two = seal.close_result(b'{"a":[1]}', MINE), seal.close_result(b'"b"', MINE._replace(id="id-2"))
    brought = b"[" + one + b",null,[" + two + b",7]]"

    assert open_values(seal, brought) == [{"a": [1]}, None, ["b", 7]]
    assert open_values(seal, b"") is None
    assert open_values(None, b"[1,[2]]") == [1, [2]]
    with pytest.raises(KeyMissing):
        open_values(None, brought)


@pytest.mark.parametrize(
    "result",
    [
        b"{",
        b'{"jobrunner:sealed":"aes:',
        b'{"jobrunner:sealed":1,"of":["a","b","c"],"value":1}',
        b'{"jobrunner:sealed":"aes:x","of":["a"],"value":1}',
    ],
)
def test_a_damaged_result_is_broken_and_no_other_error(result: bytes) -> None:
    with pytest.raises((SealBroken, NotSealed)):
        Seal([OLD], required=True).open_result(result, MINE)


@pytest.mark.parametrize("key", ["", "short", base64.b64encode(b"x" * 31).decode(), "ä" * 44])
def test_a_key_that_is_none_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InvalidOption, match="openssl rand") as caught:
        Seal([key])
    assert not key or key not in str(caught.value)


def test_either_alphabet_of_base64_is_a_key() -> None:
    secret = b"\xfb\xff" * 16
    one, other = Seal([base64.b64encode(secret).decode()]), Seal([base64.urlsafe_b64encode(secret).decode()])
    stored, stored_as = one.close(b"x", "", MINE)

    assert other.open(stored, stored_as.encode(), MINE)[0] == b"x"


def test_signing_needs_no_package_and_encrypting_says_which() -> None:
    program = f"""
import sys
sys.modules["cryptography"] = None
from jobrunner.errors import EncryptionMissing
from jobrunner.seal import Bound, Seal
print(Seal(["{OLD}"], kind="sign").close(b"x", "json", Bound("a", "b", "c"))[0])
try:
    Seal(["{OLD}"])
except EncryptionMissing as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said.startswith("b'x'\n")
    assert "pip install 'jobrunner[encryption]'" in said
