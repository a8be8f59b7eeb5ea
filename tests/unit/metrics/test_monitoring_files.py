"""The dashboard and the alert rules of the documentation name only metrics that are there, and the table names all."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from jobrunner import Client
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.keys import Keys
from jobrunner.jobs.batch_record import OUTCOMES as BATCH_OUTCOMES
from jobrunner.metrics.exposition import _STATES, families
from jobrunner.metrics.reading import take

DOCS = Path(__file__).parents[3] / "docs"
NAME = re.compile(r"jobrunner_[a-z_]+")


@pytest.fixture
def exposed(client: Client, broker: Broker, keys: Keys) -> dict[str, Metric]:
    """Every family of a scrape by the names of its samples."""
    client.queue("mail").push(1)
    changes = {f"mail send {what}": 1 for what in ("failed", "stale", "run:3", "run_us", "wait:3", "wait_us", "late:3")}
    for call in stats_calls.observe(keys, 1_700_000_000_000, "w", 1, changes):
        broker.run(call)
    return {name: family for family in families(take(client)) for name in _names(family)}


def _names(family: Metric) -> set[str]:
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
    return {family.name + end for end in ends}


def _labels(family: Metric) -> set[str]:
    return {*family._labelnames, *(["le"] if family.type == "histogram" else [])}


def expressions() -> list[str]:
    dashboard = json.loads((DOCS / "monitoring" / "grafana.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    rules = (DOCS / "monitoring" / "alerts.yml").read_text()
    return found + re.findall(r"expr: (?:>-\n)?((?:.+\n?)(?:          .+\n)*)", rules)


def test_every_expression_names_only_metrics_that_are_there(exposed: dict[str, Metric]) -> None:
    assert len(expressions()) > 25
    for expression in expressions():
        named = NAME.findall(expression)
        assert named or "up{" in expression, expression
        assert set(named) <= set(exposed), f"{set(named) - set(exposed)} in {expression}"
        assert expression.count("(") == expression.count(")"), expression


def test_every_expression_names_only_labels_and_values_that_its_metrics_have(exposed: dict[str, Metric]) -> None:
    values = {"state": set(_STATES), "outcome": {*stats_calls.OUTCOMES.values(), *BATCH_OUTCOMES}}
    for expression in expressions():
        for family, matchers in re.findall(r"(jobrunner_[a-z_]+)\{([^}]*)\}", expression):
            for label, value in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
                assert label in _labels(exposed[family]), f"{label} of {family} in {expression}"
                assert set(value.split("|")) <= values.get(label, {value}), f"{value} in {expression}"
        for grouped, family in re.findall(r"\bby \(([^)]+)\)(?=.*?(jobrunner_[a-z_]+))", expression, re.DOTALL):
            assert set(grouped.split(", ")) <= _labels(exposed[family]), f"by ({grouped}) in {expression}"


def test_a_legend_names_labels_that_its_expression_keeps() -> None:
    dashboard = json.loads((DOCS / "monitoring" / "grafana.json").read_text())
    named = [(target, set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])))
             for panel in dashboard["panels"] for target in panel["targets"]]  # fmt: skip
    assert any(labels for _, labels in named)
    for target, labels in named:
        outermost = re.search(r"\bby \(([^)]+)\)", target["expr"])
        assert labels <= set(outermost[1].split(", ") if outermost else ()), target


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


def test_the_table_of_the_documentation_is_complete(exposed: dict[str, Metric]) -> None:
    page = (DOCS / "monitoring.md").read_text()
    rows = re.findall(r"^\| `(jobrunner_[a-z_]+)` \| ([^|]*?) ?\|", page, re.MULTILINE)
    families = {one.name + ("_total" if one.type == "counter" else ""): one for one in exposed.values()}

    assert dict(rows) == {
        name: ", ".join(family._labelnames) for name, family in families.items()
    }
