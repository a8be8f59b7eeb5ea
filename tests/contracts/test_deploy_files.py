"""docs/deploy/: both files and the blocks of the page parse, and the command line accepts every command in them.

The same holds for the commands that the pages for operators show.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from jobrunner.cli.main import jobrunner

DOCS = Path(__file__).parents[2] / "docs"
DEPLOY = DOCS / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text("utf-8"))
KUBERNETES = [*yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text("utf-8"))]
PAGES = (
    "compare.md",
    "cookbook.md",
    "deploy/README.md",
    "production-checklist.md",
    "troubleshooting.md",
    "upgrading.md",
)
COMMANDS = re.compile(r"`jobrunner ([a-z][^`\n]*)`|^\$ jobrunner ([^\n]+)$|jobrunner (status|doctor [a-z.]+)$", re.M)
BEHIND = re.compile(r" [|#>&] ?| {2,}")
"""The end of a command on its line: a pipe, a comment."""


def parse(words: list[str]) -> click.Context:
    """Parses a command and its options, and does not run it. Raises click.UsageError."""
    command: click.Command = jobrunner
    above = click.Context(jobrunner, info_name="jobrunner")
    while isinstance(command, click.Group):
        name, words = words[0], words[1:]
        found = command.get_command(above, name)
        assert found is not None, f"no command {name!r}"
        command = found
        if not isinstance(command, click.Group):
            return command.make_context(name, [*words], parent=above)
    raise AssertionError("unreachable")


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """The containers of the Kubernetes file by the name of their workload."""
    for thing in KUBERNETES:
        template = thing.get("spec", {}).get("template", {})
        for container in template.get("spec", {}).get("containers", ()):
            yield thing["metadata"]["name"], container


def in_files() -> Iterator[Any]:
    """Every command of jobrunner in both files."""
    for name, service in COMPOSE["services"].items():
        if service["command"][0] == "jobrunner":
            yield pytest.param(service["command"], id=f"compose-{name}")
    for name, container in containers():
        if "command" in container:
            yield pytest.param(container["command"], id=f"kubernetes-{name}")


def on_pages() -> Iterator[Any]:
    """The commands on the pages: whole words in code, without placeholders such as `…`."""
    for page in PAGES:
        path = DOCS / page
        text = path.read_text("utf-8") if path.is_file() else ""
        for command in sorted({"".join(found) for found in COMMANDS.findall(text)}):
            words = BEHIND.split(command)[0]
            if "…" not in words:
                yield pytest.param(words, id=f"{page}: {words}")


@pytest.mark.parametrize("command", [*in_files()])
def test_the_command_line_accepts_the_commands_of_both_files(command: list[str]) -> None:
    assert all(isinstance(word, str) for word in command), command
    parse(command[1:])


@pytest.mark.parametrize("command", [*on_pages()])
def test_the_command_line_accepts_the_commands_of_the_pages(command: str) -> None:
    words = ["4" if word == "N" else word for word in shlex.split(command)]
    try:
        parse(words)
    except click.MissingParameter:
        assert not any(word.startswith("-") for word in words), "complete it, or show the command alone"


def test_both_files_run_two_kinds_of_workers_and_the_dashboard_on_a_safe_server() -> None:
    expected = {"worker-short", "worker-long", "dashboard"}
    assert expected < {*COMPOSE["services"]}
    assert expected < {name for name, _ in containers()}
    servers = [COMPOSE["services"]["server"]["command"], dict(containers())["valkey"]["args"]]
    for command in servers:
        said = " ".join(command)
        assert "--maxmemory-policy noeviction" in said
        assert "--appendonly yes" in said


def test_workers_get_more_time_to_stop_than_their_grace() -> None:
    for name, service in COMPOSE["services"].items():
        if service["command"][1] == "work":
            grace = parse(service["command"][1:]).params["grace"]
            assert int(service["stop_grace_period"].removesuffix("s")) > grace + 10, name
    for thing in KUBERNETES:
        if thing["metadata"]["name"].startswith("worker"):
            spec = thing["spec"]["template"]["spec"]
            grace = parse(spec["containers"][0]["command"][1:]).params["grace"]
            assert spec["terminationGracePeriodSeconds"] > grace + 10


def test_probes_ask_the_port_that_the_command_opens() -> None:
    for name, container in containers():
        ports = {port.get("name"): port["containerPort"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            if "httpGet" in container.get(probe, {}):
                asked = container[probe]["httpGet"]
                assert str(ports[asked["port"]]) in container["command"], name
                assert asked["path"] in ("/health", "/ready")


def test_a_worker_whose_jobs_hold_the_interpreter_has_a_minute_to_answer_its_probe() -> None:
    """With Kubernetes' defaults, a second and three tries, half a minute of computing ended the pod and its tasks."""
    (block,) = re.findall(r"^livenessProbe: .*?\}$", (DOCS / "monitoring.md").read_text("utf-8"), re.DOTALL | re.M)
    asked = [container["livenessProbe"] for _, container in containers() if "work" in container.get("command", ())]
    assert len(asked) == 2
    for probe in [*asked, yaml.safe_load(block)["livenessProbe"]]:
        assert probe["timeoutSeconds"] >= 5
        assert probe["failureThreshold"] * probe["periodSeconds"] >= 60


def test_the_blocks_of_the_page_parse_and_name_a_metric_that_exists() -> None:
    page = (DEPLOY / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.M)
    assert [yaml.safe_load(block)["kind"] for block in blocks] == ["ScaledObject", "HorizontalPodAutoscaler"]
    assert all("jobrunner_queue_oldest_age_seconds" in block for block in blocks)
    exposition = (DOCS.parent / "jobrunner" / "metrics" / "exposition.py").read_text("utf-8")
    assert "queue_oldest_age_seconds" in exposition
