"""A listener of clients: a message on a channel, awaited on a connection of its own."""

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
        """Whether the user may not subscribe: Redis 7 gives a new user no channels. Then who waits looks by itself."""

    def wait(self, at_most_s: float) -> None:
        """Returns when a message came, or after so many seconds.

        Subscribes at the first wait, and after the connection broke, and comes back at once then: a message may have
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
            sleep(min(at_most_s, _RESUBSCRIBE_S))  # who waits looks for itself then, and hears what is wrong
        except NoPermissionError:
            self.close()
            self._is_deaf = True
        except RedisError as error:
            self.close()
            raise server_error(error) from error

    def close(self) -> None:
        """Ends the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _subscribe(self) -> None:
        connection = self._broker.open_blocking(self._channel)
        connection.connect()
        self._connection = connection
        connection.ask("SUBSCRIBE", self._channel)
