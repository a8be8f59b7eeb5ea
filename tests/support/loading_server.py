"""A server that is loading its data for as long as a test wants."""

import redis

from tests.support.server import Server

_KEYS = 20_000


class LoadingServer(Server):
    """A server that after `load` replies LOADING to almost every command, until `finish`."""

    def answers(self, connection: redis.Redis) -> bool:
        """Whether the server replies; LOADING counts as a reply."""
        try:
            return bool(connection.ping())
        except redis.exceptions.BusyLoadingError:
            return True
        except redis.exceptions.ConnectionError:
            return False

    def load(self) -> None:
        """Restarts the server with keys that take minutes to load."""
        with self.connect() as connection:
            connection.config_set("rdbcompression", "no")
            connection.mset({f"key{number}": "x" * 1024 for number in range(_KEYS)})
            connection.save()
        self.kill()
        # It sleeps for 20 ms behind each key, and answers behind each KiB.
        self._options |= {"key-load-delay": "20000", "loading-process-events-interval-bytes": "1024"}
        self.start()

    def finish(self) -> None:
        """Makes the server load the remaining keys at once."""
        with self.connect() as connection:
            connection.config_set("key-load-delay", 0)
