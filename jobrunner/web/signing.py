"""Signed texts for cookies and for sessions on the server: `text.hex digest`, HMAC-SHA256 (RFC 2104)."""

import base64
import hashlib
import hmac
import json
from typing import Any

from jobrunner.clock import unix_ms

_LONGEST = 2000


def signed(value: dict[str, Any], key: bytes, *, purpose: str) -> str:
    """`value` as a text; only who has the key can make one for that purpose."""
    text = base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
    return f"{text}.{_digest(text, key, purpose)}"


def verified(given: str, key: bytes, *, purpose: str) -> dict[str, Any] | None:
    """The value of such a text; None for one that was not signed so, or has ended (`until`, Unix ms)."""
    text, dot, digest = given[:_LONGEST].rpartition(".")
    if not dot or not hmac.compare_digest(digest.encode(), _digest(text, key, purpose).encode()):
        return None
    value = json.loads(base64.urlsafe_b64decode(text))
    return value if isinstance(value, dict) and value.get("until", 0) > unix_ms() else None


def _digest(text: str, key: bytes, purpose: str) -> str:
    return hmac.new(key, f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()
