"""Fetches JSON over HTTP, blocking or with asyncio; the standard library only."""

import asyncio
import json
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen


class BadReply(Exception):
    """The server answered, but not with 200; `refused` says that asking again is of no use."""

    def __init__(self, url: str, status: int, body: str) -> None:
        super().__init__(f"{url} answered {status}: {body}")
        self.url = url
        self.status = status
        self.body = body

    @property
    def refused(self) -> bool:
        """Whether the request is at fault (4xx) and not the server (5xx)."""
        return HTTPStatus.BAD_REQUEST <= self.status < HTTPStatus.INTERNAL_SERVER_ERROR

    def __reduce__(self) -> tuple[type["BadReply"], tuple[str, int, str]]:
        return type(self), (self.url, self.status, self.body)


def get_json(url: str, timeout: float) -> dict[str, Any]:
    """The JSON object at `url`; BadReply, or OSError when the reply takes more than `timeout` seconds."""
    try:
        with urlopen(url, timeout=timeout) as reply:  # noqa: S310 - the address is the job's own
            return _object(reply.read())
    except HTTPError as error:
        with error:
            raise BadReply(url, error.code, error.read().decode(errors="replace")) from None


async def get_json_async(url: str, timeout: float) -> dict[str, Any]:
    """Like `get_json`, for many calls at a time in one thread.

    It speaks HTTP/1.0, where the reply ends with the connection.
    """
    async with asyncio.timeout(timeout):
        head, blank, body = (await _exchange(url)).partition(b"\r\n\r\n")
    if not blank:
        raise ConnectionResetError(f"{url} hung up without a reply")
    status = int(head.split(maxsplit=2)[1])
    if status != HTTPStatus.OK:
        raise BadReply(url, status, body.decode(errors="replace"))
    return _object(body)


async def _exchange(url: str) -> bytes:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(f"GET {address.path} HTTP/1.0\r\nHost: {address.netloc}\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.close()


def _object(body: bytes) -> dict[str, Any]:
    decoded = json.loads(body)
    if not isinstance(decoded, dict):
        raise ValueError(f"expected a JSON object, got {body[:60]!r}")
    return decoded
