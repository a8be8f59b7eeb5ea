"""A listener of clients, which waits for messages on a channel (SUBSCRIBE)."""

from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import BROKEN
from jobrunner.broker.redis_errors import NoPermissionError, RedisError, server_error
from jobrunner.clock import sleep

_RESUBSCRIBE_S = 0.2
_LOOK_AGAIN_S = 0.25


class ChannelListener:
    """Waits for a message on one channel, on a connection of its own."""

    def __init__(self, broker: Broker, channel: bytes) -> None:
        self._broker = broker
        self._channel = channel
        self._connection: Any = None
        self._is_deaf = False
        """Whether the user has no right to subscribe: Redis 7 gives a new user no channels. Callers then poll."""

    def wait(self, at_most_s: float) -> None:
        """Returns at a message, or after `at_most_s` seconds.

        The first wait, and the first after a broken connection, subscribes and returns at once, as a message may have
        been missed. Raises ServerRefused.
        """
        if self._is_deaf:
            sleep(min(at_most_s, _LOOK_AGAIN_S))
            return
        try:
            if self._connection is None:
                self._subscribe()
            elif self._connection.can_read(timeout=at_most_s):
                self._connection.read_response()
        except BROKEN:
            self.close()
            sleep(min(at_most_s, _RESUBSCRIBE_S))  # the caller polls then, and gets the error of the server
        except NoPermissionError:
            self.close()
            self._is_deaf = True
        except RedisError as error:
            self.close()
            raise server_error(error) from error

    def close(self) -> None:
        """Disconnects."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _subscribe(self) -> None:
        connection = self._broker.open_blocking(self._channel)
        connection.connect()
        self._connection = connection
        connection.ask("SUBSCRIBE", self._channel)
