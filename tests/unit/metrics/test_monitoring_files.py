"""The dashboard and the alert rules of the documentation name only metrics that are there, and the table names all."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jobrunner import Client
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.keys import Keys
from jobrunner.metrics.exposition import render

DOCS = Path(__file__).parents[3] / "docs"
NAME = re.compile(r"jobrunner_[a-z_]+")


@pytest.fixture
def exposed(client: Client, broker: Broker, keys: Keys) -> dict[str, str]:
    """Every metric, as its samples are called, and the name of its family."""
    client.queue("mail").push(1)
    changes = {f"mail send {what}": 1 for what in ("failed", "stale", "run:3", "run_us", "wait:3", "wait_us", "late:3")}
    for call in stats_calls.observe(keys, 1_700_000_000_000, "w", 1, changes):
        broker.run(call)
    families = list(text_string_to_metric_families(render(client).decode()))
    declared = {name for family in families for name in _names(family)}
    return {name: name for name in declared}


def _names(family: Any) -> set[str]:
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
    return {family.name + end for end in ends}


def expressions() -> list[str]:
    dashboard = json.loads((DOCS / "monitoring" / "grafana.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    rules = (DOCS / "monitoring" / "alerts.yml").read_text()
    return found + re.findall(r"expr: (?:>-\n)?((?:.+\n?)(?:          .+\n)*)", rules)


def test_every_expression_names_only_metrics_that_are_there(exposed: dict[str, str]) -> None:
    assert len(expressions()) > 25
    for expression in expressions():
        named = NAME.findall(expression)
        assert named or "up{" in expression, expression
        assert set(named) <= set(exposed), f"{set(named) - set(exposed)} in {expression}"
        assert expression.count("(") == expression.count(")"), expression


def test_every_expression_takes_one_of_the_endpoints_and_never_their_sum() -> None:
    for expression in expressions():
        if not expression.startswith("label_values"):
            assert "max" in expression, expression


def test_a_quantile_is_of_all_series_of_a_queue_and_not_of_the_largest_buckets() -> None:
    """The largest of the buckets of several types is the histogram of none: a fast job would hide a slow one."""
    labels = {"jobrunner_redis_round_trip_seconds": "le"}
    found = [one for one in expressions() if "histogram_quantile" in one]
    assert len(found) >= 6
    for expression in found:
        (over,) = re.findall(r"max by \(([^)]*)\) \(rate\((?:jobrunner_\w+)_bucket", expression)
        (family,) = re.findall(r"(jobrunner_\w+)_bucket", expression)
        assert over == labels.get(family, "le, queue, type"), f"max is over endpoints only, then sum: {expression}"


def test_rules_are_complete() -> None:
    rules = (DOCS / "monitoring" / "alerts.yml").read_text().split("- alert: ")[1:]
    assert len(rules) == len({rule.split()[0] for rule in rules}) >= 10
    for rule in rules:
        assert all(f"{word}:" in rule for word in ("expr", "severity", "summary")), rule


def test_the_table_of_the_documentation_is_complete(exposed: dict[str, str]) -> None:
    page = (DOCS / "monitoring.md").read_text()
    told = set(re.findall(r"^\| `(jobrunner_[a-z_]+)`", page, re.MULTILINE))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) if "seconds_" in name else name for name in exposed}

    assert told == families
