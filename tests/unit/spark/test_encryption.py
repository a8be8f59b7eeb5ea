"""Spark neither encrypts nor decrypts: with keys it refuses to write plain payloads, and it copies no others."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from jobrunner import Client
from jobrunner.errors import EncryptionError, InvalidOption
from jobrunner.spark.payloads import check_stored
from jobrunner.spark.station.driver import StationDriver
from tests.security.conftest import KEY
from tests.unit.spark.test_writer import Write


@pytest.fixture(params=["encrypt", "sign"])
def secret(server: Any, keys: Any, request: pytest.FixtureRequest) -> Any:
    with Client(server.url, keys.prefix, payload_keys=[KEY], payload_encryption=request.param) as made:
        yield made


def test_a_write_from_spark_is_refused_where_keys_are_configured(
    server: Any, keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBRUNNER_PAYLOAD_KEYS", KEY)

    with pytest.raises(InvalidOption, match="a write from Spark has plain payloads only"):
        Write(server, keys, pa.schema([("n", pa.int64())]))


def test_a_station_on_spark_is_refused_where_keys_are_configured(secret: Client) -> None:
    station: Any = SimpleNamespace(queue="pipe/in")

    with pytest.raises(InvalidOption, match="a station on Spark has plain payloads only"):
        StationDriver(station, secret, lambda *_: None)


def test_an_encrypted_payload_is_not_copied_to_another_task(secret: Client, raw: Any) -> None:
    task = secret.queue("orders").push({"n": 1})
    (key,) = raw.keys(f"{secret.settings.prefix}:*task:{task}")
    encoding = raw.hget(key, "encoding").decode()

    with pytest.raises(EncryptionError, match=task):
        check_stored(encoding, task)
    check_stored(None, task)
    check_stored("raw", task)
