"""The backoffs of queues, for failed tasks whose job sets none."""

import redis
import structlog.testing

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.outcome import Failed
from jobrunner.retry import Backoff
from jobrunner.worker.report.reported_outcome import QueueBackoffs
from tests.unit.worker.attempts import attempt_at


def test_settings_that_cannot_be_read_are_asked_for_and_complained_of_once(
    broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    raw.set(keys.queue("q").settings, "damaged")
    backoffs = QueueBackoffs(broker, keys)
    raw.config_resetstat()

    with structlog.testing.capture_logs() as lines:
        delays = {backoffs.reported(attempt_at("a"), Failed("no")).delay_s for _ in range(200)}

    longest_s = 2 * Backoff().delay(1)
    assert all(delay_s is not None and 0 < delay_s <= longest_s for delay_s in delays)
    assert [line["queue"] for line in lines] == ["q"]
    assert raw.info("commandstats")["cmdstat_hgetall"]["calls"] < 20
