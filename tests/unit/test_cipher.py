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
    decrypt_payload,
    decrypt_result,
    is_encrypted,
)
from jobrunner.encryption.envelope import is_protected
from jobrunner.errors import DecryptionFailed, EncryptionKeyMissing, InvalidOption, NotEncrypted

OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
MINE = EncryptionContext("id-1", "mail", "tag", "tag/queue", b'{"a":"b"}', b'[["q","j",0]]')


@pytest.fixture(params=["encrypt", "sign"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("raw", [b"", b"{}", os.urandom(1 << 20), b"\x00\xff aes:"])
@pytest.mark.parametrize("encoding", ["", "json"])
def test_what_was_encrypted_is_decrypted_as_it_was(kind: str, raw: bytes, encoding: str) -> None:
    encryption = PayloadEncryption([OLD], kind=kind)

    stored, stored_as = encryption.encrypt(raw, encoding, MINE)

    assert encryption.decrypt(stored, stored_as.encode(), MINE) == (raw, encoding.encode(), b"")
    assert is_protected(stored_as.encode())
    assert is_encrypted(stored_as.encode()) is (kind == "encrypt")


STORED = {
    "encrypt": (
        b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXSgCsrxl6ZPL+yvUGwpB7gRcXBJlhrCQ=",
        "sealed SlICAQEAcs1uhAAEAAkAAAAFanNvbnRhZy9xdWV1ZWFmdGVy",
        (
            b'{"jobrunner:sealed":"SlICAQIAcs1uhAAAAAAAAAAA","of":["id-1","mail","tag","[[\\"q\\",\\"j\\",0]]"],'
            b'"value":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXahOJne9BRloo2ck48PnujIMnhQ=="}'
        ),
    ),
    "sign": (
        base64.b64encode(b'{"x":1}'),
        "sealed SlICAgEAcs1uhAAEAAkAAAAFanNvbnRhZy9xdWV1ZWFmdGVy dCAeKpiqenl5Tpk67CZxzr77mzKFa77g3EUCI06C1Kw=",
        (
            b'{"jobrunner:sealed":"SlICAgIAcs1uhAAAAAAAAAAA.MIBsIdsirLyCdRJ3N0xyHFuQcWIFADqhSuf1P3khFCU=",'
            b'"of":["id-1","mail","tag","[[\\"q\\",\\"j\\",0]]"],"value":[1]}'
        ),
    ),
}
"""The stored bytes of version 2 of the format: payload, its encoding, and a result."""


def test_the_stored_format_stays_as_it_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda count: bytes(range(count)))
    encryption = PayloadEncryption([OLD], kind=kind)
    payload, encoding, result = STORED[kind]

    stored, stored_as = encryption.encrypt(b'{"x":1}', "json", MINE, after=b"after")

    assert (base64.b64encode(stored), stored_as) == (payload, encoding)
    assert encryption.encrypt_result(b"[1]", MINE) == result
    assert encryption.sign_parameters(b'{"x":1}', MINE) == (
        "sealed SlICAgMAcs1uhAAAAAkAAAAAdGFnL3F1ZXVl yP7bqGZfqzgJLcQ0esWsjSip0o5jfJHfIkV6vT2p0l4="
    )
    assert encryption.decrypt(stored, stored_as.encode(), MINE) == (b'{"x":1}', b"json", b"after")


def test_ciphertext_tells_nothing_and_never_is_the_same_and_a_signed_payload_is_as_it_was() -> None:
    encrypting, signing = PayloadEncryption([OLD]), PayloadEncryption([OLD], kind="sign")

    stored = {encrypting.encrypt(b"secret" * 9, "json", MINE)[0] for _ in range(100)}

    assert len(stored) == 100
    assert not [one for one in stored if b"secret" in one or len(one) != 54 + 40]
    assert signing.encrypt(b"secret", "json", MINE)[0] == b"secret"


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
def test_ciphertext_does_not_fit_another_task(kind: str, other: EncryptionContext) -> None:
    encryption = PayloadEncryption([OLD], kind=kind)
    stored, stored_as = encryption.encrypt(b"x", "json", MINE)

    with pytest.raises(DecryptionFailed, match="another task"):
        encryption.decrypt(stored, stored_as.encode(), other)
    with pytest.raises(DecryptionFailed):
        encryption.decrypt_result(encryption.encrypt_result(b"1", MINE), other)


def test_a_payload_does_not_open_with_other_headers_or_below_another_prefix(kind: str) -> None:
    stored, stored_as = PayloadEncryption([OLD], kind=kind).encrypt(b"x", "json", MINE)

    for encryption, other in (
        (PayloadEncryption([OLD]), MINE._replace(headers=b"{}")),
        (PayloadEncryption([OLD]), MINE._replace(headers=b"")),
        (PayloadEncryption([OLD], prefix="jobrunner-2"), MINE),
    ):
        with pytest.raises(DecryptionFailed, match="another task"):
            encryption.decrypt(stored, stored_as.encode(), other)


def test_a_payload_is_decrypted_in_its_own_queue_or_where_this_program_says_its_dead_go(kind: str) -> None:
    encryption = PayloadEncryption([OLD], kind=kind)
    here, there, beyond = (MINE._replace(queue=f"tag/{kind}{n}") for n in range(3))
    stored, stored_as = encryption.encrypt(b"x", "json", here)

    with pytest.raises(DecryptionFailed, match=f"encrypted or signed for queue 'tag/{kind}0' and is in 'tag/{kind}2'"):
        encryption.decrypt(stored, stored_as.encode(), beyond)
    assert encryption.decrypt(stored, stored_as.encode(), beyond, anywhere=True).raw == b"x"
    allow_forward(here.queue, there.queue)
    allow_forward(there.queue, beyond.queue)
    assert encryption.decrypt(stored, stored_as.encode(), beyond).raw == b"x"


class Busy(str):
    """A name during whose look-up another thread declares a `dead_letter_queue`."""

    __slots__ = ()

    def __hash__(self) -> int:
        if _declared:
            allow_forward("busy/0", _declared.pop())
        return str.__hash__(self)


_declared: list[str] = []


def test_a_payload_is_decrypted_while_another_thread_declares_a_dead_letter_queue() -> None:
    encryption = PayloadEncryption([OLD])
    here, there = (MINE._replace(queue=f"busy/{n}") for n in range(2))
    stored, stored_as = encryption.encrypt(b"x", "json", here)
    allow_forward(here.queue, Busy(there.queue))
    _declared.append("busy/2")

    assert encryption.decrypt(stored, stored_as.encode(), there).raw == b"x"
    assert not _declared


def test_a_payload_is_no_result_and_a_result_no_payload(kind: str) -> None:
    encryption = PayloadEncryption([OLD], kind=kind)
    bare = EncryptionContext("id-1", "mail", "tag")
    stored, stored_as = encryption.encrypt(b"1", "", bare)
    stored_result = msgspec.json.decode(encryption.encrypt_result(b"1", bare))

    value = base64.b64decode(stored_result["value"]) if kind == "encrypt" else b"1"
    word = " ".join(["sealed", *stored_result["jobrunner:sealed"].split(".")])
    with pytest.raises(DecryptionFailed):
        encryption.decrypt(value, word.encode(), bare)
    stored_result["jobrunner:sealed"] = ".".join(stored_as.split(" ")[1:])
    stored_result["value"] = base64.b64encode(stored).decode() if kind == "encrypt" else 1
    with pytest.raises(DecryptionFailed):
        encryption.decrypt_result(msgspec.json.encode(stored_result), bare)


@pytest.mark.parametrize(
    "words",
    [
        "json aes:34750f98",
        "json aes:34750f98 lock:0123456789abcdef",
        "json hmac:34750f98:" + "0" * 64,
        "json hmac:34750f98:" + "0" * 64 + " id-2",
    ],
)
def test_what_the_first_format_encrypted_is_refused_and_the_error_says_so(words: str) -> None:
    with pytest.raises(DecryptionFailed, match="first format"):
        PayloadEncryption([OLD]).decrypt(b"x" * 60, words.encode(), MINE)


def test_none_is_encrypted_where_a_flow_asks_for_a_proof(kind: str) -> None:
    encryption = PayloadEncryption([OLD], kind=kind, required=True)

    stored = encryption.encrypt_result(b"", MINE)

    assert encryption.decrypt_result(stored, MINE) == b"null"
    with pytest.raises(NotEncrypted):
        encryption.decrypt_result(b"", MINE)


@given(data=st.data())
def test_no_changed_byte_goes_unseen(data: st.DataObject) -> None:
    encryption = PayloadEncryption([OLD], kind=data.draw(st.sampled_from(["encrypt", "sign"])))
    stored, stored_as = encryption.encrypt(data.draw(st.binary(max_size=40)), "json", MINE)
    parts = [stored, stored_as.encode()]
    which = data.draw(st.sampled_from([n for n in (0, 1) if parts[n]]))
    at = data.draw(st.integers(0, len(parts[which]) - 1))
    changed = bytearray(parts[which])
    changed[at] ^= data.draw(st.integers(1, 255))
    parts[which] = bytes(changed)

    try:
        opened = PayloadEncryption([OLD], required=True).decrypt(parts[0], parts[1], MINE)
    except (DecryptionFailed, EncryptionKeyMissing, NotEncrypted):
        return
    raise AssertionError(f"{parts} was opened as {opened}")


def test_a_payload_that_says_it_is_shorter_than_any_ciphertext_is_refused() -> None:
    encryption = PayloadEncryption([OLD])
    _, stored_as = encryption.encrypt(b"", "", MINE)

    with pytest.raises(DecryptionFailed):
        encryption.decrypt(b"short", stored_as.encode(), MINE)


def test_keys_change_one_after_the_other(kind: str) -> None:
    before, both, after = (
        PayloadEncryption([OLD], kind=kind),
        PayloadEncryption([NEW, OLD], kind=kind),
        PayloadEncryption([NEW], kind=kind),
    )
    old, new = before.encrypt(b"x", "", MINE), both.encrypt(b"x", "", MINE)

    assert both.decrypt(old[0], old[1].encode(), MINE)[0] == b"x"
    assert after.decrypt(new[0], new[1].encode(), MINE)[0] == b"x"
    with pytest.raises(EncryptionKeyMissing, match="payload_keys"):
        after.decrypt(old[0], old[1].encode(), MINE)
    with pytest.raises(EncryptionKeyMissing):
        before.decrypt(new[0], new[1].encode(), MINE)


def test_either_kind_opens_what_the_other_closed() -> None:
    signing, encrypting = PayloadEncryption([OLD], kind="sign"), PayloadEncryption([OLD], required=True)

    for one, other in ((signing, encrypting), (encrypting, signing)):
        stored, stored_as = one.encrypt(b"x", "json", MINE)
        assert other.decrypt(stored, stored_as.encode(), MINE)[:2] == (b"x", b"json")


def test_plain_is_accepted_unless_it_is_refused() -> None:
    lenient, strict = PayloadEncryption([OLD]), PayloadEncryption([OLD], required=True)

    assert lenient.decrypt(b"x", b"json", MINE) == (b"x", b"json", None)
    assert lenient.decrypt_result(b"1", MINE) == b"1"
    assert strict.decrypt_result(b"", MINE._replace(then=b"")) == b""
    with pytest.raises(NotEncrypted):
        strict.decrypt(b"x", b"json", MINE)
    with pytest.raises(NotEncrypted):
        strict.decrypt_result(b"1", MINE)


def test_without_keys_what_is_encrypted_is_an_error_that_says_which_setting_lacks(kind: str) -> None:
    encryption = PayloadEncryption([OLD], kind=kind)
    stored, stored_as = encryption.encrypt(b"x", "", MINE)

    with pytest.raises(EncryptionKeyMissing, match="JOBRUNNER_PAYLOAD_KEYS"):
        decrypt_payload(None, stored, stored_as.encode(), MINE)
    with pytest.raises(EncryptionKeyMissing, match="JOBRUNNER_PAYLOAD_KEYS"):
        decrypt_result(None, encryption.encrypt_result(b"1", MINE), MINE)
    assert decrypt_payload(None, b"x", None, MINE) == (b"x", b"", None)


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
        PayloadEncryption([OLD], required=True).decrypt_result(result, MINE)


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
    stored, stored_as = one.encrypt(b"x", "", MINE)

    assert other.decrypt(stored, stored_as.encode(), MINE)[0] == b"x"


def test_signing_needs_no_package_and_encrypting_says_which() -> None:
    program = f"""
import sys
sys.modules["cryptography"] = None
from jobrunner.errors import EncryptionMissing
from jobrunner.encryption.cipher import EncryptionContext, PayloadEncryption
print(PayloadEncryption(["{OLD}"], kind="sign").encrypt(b"x", "json", EncryptionContext("a", "b", "c"))[0])
try:
    PayloadEncryption(["{OLD}"])
except EncryptionMissing as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said.startswith("b'x'\n")
    assert 'pip install "jobrunner-queue[encryption]"' in said
