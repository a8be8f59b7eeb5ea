"""Refuses encrypted payloads: Spark neither decrypts nor encrypts, and must not write plain payloads instead."""

from jobrunner.encryption.cipher import is_sealed
from jobrunner.errors import EncryptionError, InvalidOption
from jobrunner.settings import ClientSettings


def check_plain(settings: ClientSettings, what: str) -> None:
    """Raises InvalidOption where payloads are to be encrypted or signed."""
    if settings.payload_keys:
        raise InvalidOption(
            f"payload_keys are configured, and {what} has plain payloads only: enqueue and run secret payloads in "
            "Python, and use Spark from a program without payload_keys"
        )


def check_stored(encoding: str | None, task_id: str) -> None:
    """Raises EncryptionError for an encrypted or signed payload, as it is bound to its task's id."""
    if encoding is not None and is_sealed(encoding.encode()):
        raise EncryptionError(
            f"the payload of task {task_id} is encrypted or signed for this id, and Spark cannot give it another; "
            "replay it with Queue.replay, where keys are configured"
        )
