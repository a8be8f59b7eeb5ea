"""The third party: a local HTTP server that quotes fares, knows the weather, and really fails.

::

    GET /fares/EWR-IAH           200 {"route": ..., "km": ..., "fare_cents": ...}
                                 404 for an airport it does not know: always, so asking again is of no use
                                 500, a hang-up or a reply that comes too late: its bad days
    GET /weather/EWR/2013-02-08  200 {"origin": ..., "day": ..., "max_wind_mph": ..., ...}; slow, but reliable

How often a route fails before it is quoted is drawn from the seed and the route alone, so two runs with one
seed go alike, in whatever order the calls come and however many workers are killed.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Event, Lock, Thread
from typing import Literal, Self

from jobs_example import dataset
from jobs_example.office.geography import great_circle_km
from jobs_example.office.weather import DayOfWeather, days_of_weather

Trouble = Literal["error", "hang-up", "late"]

MOST_FAILURES = 3
"""No route fails more often than this; the next request gets the quote."""

LATE_S = 5.0
"""How late a late reply is: longer than a caller waits."""


def troubles(seed: int, route: str) -> tuple[Trouble, ...]:
    """The failures of the first calls for a route: none for two routes of three."""
    random = Random(f"{seed}/{route}")
    failures = random.choices(range(MOST_FAILURES + 1), weights=(66, 20, 10, 4))[0]
    kinds: tuple[Trouble, ...] = ("error", "hang-up", "late")
    return tuple(random.choices(kinds, weights=(75, 20, 5), k=failures))


def refused(routes: Iterable[str]) -> list[str]:
    """The routes that the partner never quotes, as an airport of theirs is not in its list."""
    known = dataset.airports()
    return [route for route in routes if not all(code in known for code in route.split("-"))]


class Partner:
    """A running partner; use it in a `with` statement, which starts and stops it.

    1. Listens on a free port of this machine only; `url` says where.
    2. Answers each call in a thread of its own, after the time that such a call takes.
    3. Counts the calls by their result in `calls`: "quoted", "refused", "weather", and each kind of failure.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.calls: Counter[str] = Counter()
        self._asked: defaultdict[str, int] = defaultdict(int)
        self._lock = Lock()
        self._closing = Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.partner = self
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        """Its URL, such as "http://127.0.0.1:40123"."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def reply(self, path: str) -> "_Reply | None":
        """The answer to a GET of `path`, None for a hang-up; takes the time that the call takes."""
        match path.strip("/").split("/"):
            case ["fares", route]:
                return self._fare(route)
            case ["weather", origin, day]:
                return self._weather(origin, day)
        return self._counted("unknown", HTTPStatus.NOT_FOUND, {"error": f"nothing is at {path}"})

    def _fare(self, route: str) -> "_Reply | None":
        self._take(0.02, 0.08, route)
        if unknown := [code for code in route.split("-") if code not in self._airports]:
            return self._counted("refused", HTTPStatus.NOT_FOUND, {"error": f"unknown airport {unknown[0]}"})
        match self._next_trouble(route):
            case "error":
                return self._counted("error", HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "try again later"})
            case "hang-up":
                self._count("hang-up")
                return None
            case "late":
                self._count("late")
                self._closing.wait(LATE_S)
                return None
        start, end = (self._airports[code] for code in route.split("-"))
        km = great_circle_km(start, end)
        fare = {"route": route, "km": round(km), "fare_cents": 3900 + round(9.5 * km)}
        return self._counted("quoted", HTTPStatus.OK, fare)

    def _weather(self, origin: str, day: str) -> "_Reply":
        self._take(0.05, 0.25, f"{origin}/{day}")
        found = self._days.get((origin, day))
        if found is None:
            return self._counted("unknown", HTTPStatus.NOT_FOUND, {"error": f"no weather on {day}"})
        return self._counted("weather", HTTPStatus.OK, asdict(found))

    def _next_trouble(self, route: str) -> Trouble | None:
        planned = troubles(self.seed, route)
        with self._lock:
            call = self._asked[route]
            self._asked[route] += 1
        return planned[call] if call < len(planned) else None

    def _take(self, least: float, most: float, subject: str) -> None:
        self._closing.wait(Random(f"{self.seed}/{subject}").uniform(least, most))

    def _counted(self, what: str, status: HTTPStatus, body: dict[str, object]) -> "_Reply":
        self._count(what)
        return _Reply(status=status, body=json.dumps(body).encode())

    def _count(self, what: str) -> None:
        with self._lock:
            self.calls[what] += 1

    @cached_property
    def _airports(self) -> dict[str, dataset.Airport]:
        return dataset.airports()

    @cached_property
    def _days(self) -> dict[tuple[str, str], DayOfWeather]:
        return {(day.origin, day.day): day for day in days_of_weather(dataset.weather())}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    status: HTTPStatus
    body: bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a fan of calls arrives at once; the default of 5 would refuse some of it
    partner: Partner


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        answer = self.server.partner.reply(self.path)
        self.close_connection = True
        if answer is None:
            return
        with suppress(ConnectionError):  # a caller that was killed meanwhile receives no answer
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

    def log_message(self, *args: object) -> None:
        """Logs nothing: the calling jobs have logs of their own."""
