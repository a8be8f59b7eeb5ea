"""Spark and sealed payloads: it neither opens nor closes them, and says so instead of writing what is plain."""

from jobrunner.encryption.cipher import is_sealed
from jobrunner.errors import EncryptionError, InvalidOption
from jobrunner.settings import ClientSettings


def check_plain(settings: ClientSettings, what: str) -> None:
    """Raises InvalidOption where payloads are to be encrypted or signed."""
    if settings.payload_keys:
        raise InvalidOption(
            f"payload_keys are configured, and {what} has plain payloads only: enqueue and run in Python what is "
            "secret, and give Spark a program without keys"
        )


def check_stored(encoding: str | None, task_id: str) -> None:
    """Raises EncryptionError for a payload that is sealed for another id than the one that it would be given."""
    if encoding is not None and is_sealed(encoding.encode()):
        raise EncryptionError(
            f"the payload of task {task_id} is encrypted or signed for that one, Spark cannot give it to another; "
            "replay it with Queue.replay, where keys are configured"
        )
