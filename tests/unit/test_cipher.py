"""Encryption and signatures: payloads that it decrypts or refuses, and the choice of the key."""

import base64
import os
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobrunner.encryption.cipher import (
    EncryptionContext,
    PayloadEncryption,
    allow_forward,
    is_encrypted,
    is_sealed,
    open_payload,
    open_result,
)
from jobrunner.errors import DecryptionFailed, EncryptionKeyMissing, InvalidOption, NotEncrypted

OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
MINE = EncryptionContext("id-1", "mail", "tag", "tag/queue", b'{"a":"b"}', b'[["q","j",0]]')


@pytest.fixture(params=["encrypt", "sign"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("raw", [b"", b"{}", os.urandom(1 << 20), b"\x00\xff aes:"])
@pytest.mark.parametrize("encoding", ["", "json"])
def test_what_was_closed_opens_as_it_was(kind: str, raw: bytes, encoding: str) -> None:
    seal = PayloadEncryption([OLD], kind=kind)

    stored, stored_as = seal.close(raw, encoding, MINE)

    assert seal.open(stored, stored_as.encode(), MINE) == (raw, encoding.encode(), b"")
    assert is_sealed(stored_as.encode())
    assert is_encrypted(stored_as.encode()) is (kind == "encrypt")


def test_ciphertext_tells_nothing_and_never_is_the_same_and_a_signed_payload_is_as_it_was() -> None:
    encrypting, signing = PayloadEncryption([OLD]), PayloadEncryption([OLD], kind="sign")

    stored = {encrypting.close(b"secret" * 9, "json", MINE)[0] for _ in range(100)}

    assert len(stored) == 100
    assert not [one for one in stored if b"secret" in one or len(one) != 54 + 40]
    assert signing.close(b"secret", "json", MINE)[0] == b"secret"


@pytest.mark.parametrize(
    "other",
    [
        MINE._replace(id="id-2"),
        MINE._replace(type="pay"),
        MINE._replace(tag="gat"),
        MINE._replace(id="id-1mail", type=""),
        MINE._replace(then=b'[["q","j",1]]'),
    ],
)
def test_a_seal_does_not_fit_another_task(kind: str, other: EncryptionContext) -> None:
    seal = PayloadEncryption([OLD], kind=kind)
    stored, stored_as = seal.close(b"x", "json", MINE)

    with pytest.raises(DecryptionFailed, match="another task"):
        seal.open(stored, stored_as.encode(), other)
    with pytest.raises(DecryptionFailed):
        seal.open_result(seal.close_result(b"1", MINE), other)


def test_a_payload_does_not_open_with_other_headers_or_below_another_prefix(kind: str) -> None:
    stored, stored_as = PayloadEncryption([OLD], kind=kind).close(b"x", "json", MINE)

    for seal, other in (
        (PayloadEncryption([OLD]), MINE._replace(headers=b"{}")),
        (PayloadEncryption([OLD]), MINE._replace(headers=b"")),
        (PayloadEncryption([OLD], prefix="jobrunner-2"), MINE),
    ):
        with pytest.raises(DecryptionFailed, match="another task"):
            seal.open(stored, stored_as.encode(), other)


def test_a_payload_opens_in_the_queue_that_it_was_sealed_for_or_where_this_program_says_its_dead_go(kind: str) -> None:
    seal = PayloadEncryption([OLD], kind=kind)
    here, there, beyond = (MINE._replace(queue=f"tag/{kind}{n}") for n in range(3))
    stored, stored_as = seal.close(b"x", "json", here)

    with pytest.raises(DecryptionFailed, match=f"sealed for queue 'tag/{kind}0' and is in 'tag/{kind}2'"):
        seal.open(stored, stored_as.encode(), beyond)
    assert seal.open(stored, stored_as.encode(), beyond, anywhere=True).raw == b"x"
    allow_forward(here.queue, there.queue)
    allow_forward(there.queue, beyond.queue)
    assert seal.open(stored, stored_as.encode(), beyond).raw == b"x"


def test_a_payload_is_no_result_and_a_result_no_payload(kind: str) -> None:
    seal = PayloadEncryption([OLD], kind=kind)
    bare = EncryptionContext("id-1", "mail", "tag")
    stored, stored_as = seal.close(b"1", "", bare)
    sealed = msgspec.json.decode(seal.close_result(b"1", bare))

    value = base64.b64decode(sealed["value"]) if kind == "encrypt" else b"1"
    word = " ".join(["sealed", *sealed["jobrunner:sealed"].split(".")])
    with pytest.raises(DecryptionFailed):
        seal.open(value, word.encode(), bare)
    sealed["jobrunner:sealed"] = ".".join(stored_as.split(" ")[1:])
    sealed["value"] = base64.b64encode(stored).decode() if kind == "encrypt" else 1
    with pytest.raises(DecryptionFailed):
        seal.open_result(msgspec.json.encode(sealed), bare)


@pytest.mark.parametrize(
    "words",
    [
        "json aes:34750f98",
        "json aes:34750f98 lock:0123456789abcdef",
        "json hmac:34750f98:" + "0" * 64,
        "json hmac:34750f98:" + "0" * 64 + " id-2",
    ],
)
def test_what_the_first_format_sealed_is_refused_and_the_error_says_so(words: str) -> None:
    with pytest.raises(DecryptionFailed, match="first format"):
        PayloadEncryption([OLD]).open(b"x" * 60, words.encode(), MINE)


def test_none_is_sealed_where_a_flow_asks_for_a_proof(kind: str) -> None:
    seal = PayloadEncryption([OLD], kind=kind, required=True)

    sealed = seal.close_result(b"", MINE)

    assert seal.open_result(sealed, MINE) == b"null"
    with pytest.raises(NotEncrypted):
        seal.open_result(b"", MINE)


@given(data=st.data())
def test_no_changed_byte_goes_unseen(data: st.DataObject) -> None:
    seal = PayloadEncryption([OLD], kind=data.draw(st.sampled_from(["encrypt", "sign"])))
    stored, stored_as = seal.close(data.draw(st.binary(max_size=40)), "json", MINE)
    parts = [stored, stored_as.encode()]
    which = data.draw(st.sampled_from([n for n in (0, 1) if parts[n]]))
    at = data.draw(st.integers(0, len(parts[which]) - 1))
    changed = bytearray(parts[which])
    changed[at] ^= data.draw(st.integers(1, 255))
    parts[which] = bytes(changed)

    try:
        opened = PayloadEncryption([OLD], required=True).open(parts[0], parts[1], MINE)
    except (DecryptionFailed, EncryptionKeyMissing, NotEncrypted):
        return
    raise AssertionError(f"{parts} was opened as {opened}")


def test_a_payload_that_says_it_is_shorter_than_any_ciphertext_is_refused() -> None:
    seal = PayloadEncryption([OLD])
    _, stored_as = seal.close(b"", "", MINE)

    with pytest.raises(DecryptionFailed):
        seal.open(b"short", stored_as.encode(), MINE)


def test_keys_change_one_after_the_other(kind: str) -> None:
    before, both, after = (
        PayloadEncryption([OLD], kind=kind),
        PayloadEncryption([NEW, OLD], kind=kind),
        PayloadEncryption([NEW], kind=kind),
    )
    old, new = before.close(b"x", "", MINE), both.close(b"x", "", MINE)

    assert both.open(old[0], old[1].encode(), MINE)[0] == b"x"
    assert after.open(new[0], new[1].encode(), MINE)[0] == b"x"
    with pytest.raises(EncryptionKeyMissing, match="payload_keys"):
        after.open(old[0], old[1].encode(), MINE)
    with pytest.raises(EncryptionKeyMissing):
        before.open(new[0], new[1].encode(), MINE)


def test_either_kind_opens_what_the_other_closed() -> None:
    signing, encrypting = PayloadEncryption([OLD], kind="sign"), PayloadEncryption([OLD], required=True)

    for one, other in ((signing, encrypting), (encrypting, signing)):
        stored, stored_as = one.close(b"x", "json", MINE)
        assert other.open(stored, stored_as.encode(), MINE)[:2] == (b"x", b"json")


def test_plain_is_accepted_unless_it_is_refused() -> None:
    lenient, strict = PayloadEncryption([OLD]), PayloadEncryption([OLD], required=True)

    assert lenient.open(b"x", b"json", MINE) == (b"x", b"json", None)
    assert lenient.open_result(b"1", MINE) == b"1"
    assert strict.open_result(b"", MINE._replace(then=b"")) == b""
    with pytest.raises(NotEncrypted):
        strict.open(b"x", b"json", MINE)
    with pytest.raises(NotEncrypted):
        strict.open_result(b"1", MINE)


def test_without_keys_what_is_sealed_is_an_error_that_says_which_setting_lacks(kind: str) -> None:
    seal = PayloadEncryption([OLD], kind=kind)
    stored, stored_as = seal.close(b"x", "", MINE)

    with pytest.raises(EncryptionKeyMissing, match="JOBRUNNER_PAYLOAD_KEYS"):
        open_payload(None, stored, stored_as.encode(), MINE)
    with pytest.raises(EncryptionKeyMissing, match="JOBRUNNER_PAYLOAD_KEYS"):
        open_result(None, seal.close_result(b"1", MINE), MINE)
    assert open_payload(None, b"x", None, MINE) == (b"x", b"", None)


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
    with pytest.raises((DecryptionFailed, NotEncrypted)):
        PayloadEncryption([OLD], required=True).open_result(result, MINE)


@pytest.mark.parametrize("key", ["", "short", base64.b64encode(b"x" * 31).decode(), "ä" * 44])
def test_a_key_that_is_none_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InvalidOption, match="openssl rand") as caught:
        PayloadEncryption([key])
    assert not key or key not in str(caught.value)


def test_either_alphabet_of_base64_is_a_key() -> None:
    secret = b"\xfb\xff" * 16
    one, other = (
        PayloadEncryption([base64.b64encode(secret).decode()]),
        PayloadEncryption([base64.urlsafe_b64encode(secret).decode()]),
    )
    stored, stored_as = one.close(b"x", "", MINE)

    assert other.open(stored, stored_as.encode(), MINE)[0] == b"x"


def test_signing_needs_no_package_and_encrypting_says_which() -> None:
    program = f"""
import sys
sys.modules["cryptography"] = None
from jobrunner.errors import EncryptionMissing
from jobrunner.encryption.cipher import EncryptionContext, PayloadEncryption
print(PayloadEncryption(["{OLD}"], kind="sign").close(b"x", "json", EncryptionContext("a", "b", "c"))[0])
try:
    PayloadEncryption(["{OLD}"])
except EncryptionMissing as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said.startswith("b'x'\n")
    assert "pip install 'jobrunner[encryption]'" in said
