"""docs/deploy/: both files and the blocks of the page parse, and the command line accepts every command in them.

The same holds for the commands that all other pages show.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
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
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TYPED = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*(?:docker .*? exec \S+ |kubectl exec \S+ -- )?jobrunner ([a-z].*)$", re.M)
MENTIONED = re.compile(r"`jobrunner ([a-z][^`]*)`")
BEHIND = re.compile(r" [|#>&;] ?| {2,}")
"""The end of a command on its line: a pipe, a comment, the next command."""
PLACEHOLDERS = re.compile(r"…|\[|\\\|")
IN_CAPITALS = re.compile(r"^[A-Z]$")


def parse(words: list[str]) -> click.Context:
    """Parses a command and its options, and does not run it. Raises click.UsageError."""
    command: click.Command = jobrunner
    above = click.Context(jobrunner, info_name="jobrunner")
    while isinstance(command, click.Group) and words:
        name, words = words[0], words[1:]
        found = command.get_command(above, name)
        assert found is not None, f"no command {name!r}"
        command = found
        if not isinstance(command, click.Group):
            return command.make_context(name, [*words], parent=above)
    return above


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


def pages() -> Iterator[Path]:
    """All pages but those that are made of the command line itself."""
    yield DOCS.parent / "README.md"
    yield from (path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "reference")


def commands_on(page: str) -> set[str]:
    """The commands in the blocks of shells, and those that sentences and tables mention in code."""
    blocks = [block.replace("\\\n", " ") for kind, block in FENCE.findall(page) if kind in ("", "sh", "console")]
    typed = (TYPED.findall(block) for block in blocks)
    mentioned = MENTIONED.findall(FENCE.sub("", page))
    whole = (" ".join(BEHIND.split(command.replace("\n", " "))[0].split()) for command in chain(mentioned, *typed))
    return {command for command in whole if not PLACEHOLDERS.search(command)}


def on_pages() -> Iterator[Any]:
    """The commands on all pages, without those that have placeholders such as `…`."""
    for path in pages():
        for command in sorted(commands_on(path.read_text("utf-8"))):
            yield pytest.param(command, id=f"{path.relative_to(DOCS.parent)}: {command}")


@pytest.mark.parametrize("command", [*in_files()])
def test_the_command_line_accepts_the_commands_of_both_files(command: list[str]) -> None:
    assert all(isinstance(word, str) for word in command), command
    parse(command[1:])


@pytest.mark.parametrize("command", [*on_pages()])
def test_the_command_line_accepts_the_commands_of_the_pages(command: str) -> None:
    words = ["4" if IN_CAPITALS.match(word) else word for word in shlex.split(command)]
    try:
        parse(words)
    except click.MissingParameter:
        assert not any(word.startswith("-") for word in words), "complete it, or show the command alone"
    except click.BadOptionUsage as error:
        if words[-1] != error.option_name:  # the name of an option at the end is a mention, without a value
            raise


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


def test_the_systemd_unit_is_valid_and_waits_longer_than_the_grace(tmp_path: Path) -> None:
    (unit,) = re.findall(r"^```ini\n(\[Unit\].*?)^```$", (DOCS / "deployment.md").read_text("utf-8"), re.DOTALL | re.M)
    (program, command) = re.findall(r"^ExecStart=(\S+)/jobrunner (.*)$", unit, re.M)[0]
    service = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    assert int(service["TimeoutStopSec"]) >= parse(shlex.split(command)).params["grace"] + 10
    assert service["KillMode"] == "mixed"
    assert service["Wants"] == service["After"]
    # A password with an escape, as %40, is lost in `Environment=`, where % begins a specifier.
    assert "EnvironmentFile" in service
    assert "Environment" not in service

    if analyze := shutil.which("systemd-analyze"):
        file = tmp_path / "jobrunner-worker.service"
        file.write_text(unit.replace(f"{program}/jobrunner", sys.executable).replace("User=app", "User=root"), "utf-8")
        said = subprocess.run([analyze, "verify", str(file)], capture_output=True, text=True, timeout=60)
        assert file.name not in said.stderr, said.stderr


def test_the_images_of_all_pages_run_as_a_user_by_number() -> None:
    for page in ("deploy/README.md", "deployment.md", "monitoring.md", "start/tutorial.md"):
        assert re.findall(r"^USER (.*)$", (DOCS / page).read_text("utf-8"), re.M) == ["65534"], page


def test_no_container_has_more_rights_than_it_needs() -> None:
    """As the restricted Pod Security Standard has it, and with a read-only root, in which a worker works
    (tests/acceptance/test_read_only.py)."""
    pods = [thing["spec"]["template"]["spec"] for thing in KUBERNETES if "template" in thing.get("spec", {})]
    assert len(pods) == 4
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert {*container["resources"]} == {"requests", "limits"}
    for name, service in COMPOSE["services"].items():
        if service["command"][0] == "jobrunner":
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]


def test_workers_have_an_init_for_the_processes_that_jobs_leave_behind() -> None:
    services = [service for service in COMPOSE["services"].values() if service["command"][1:2] == ["work"]]
    assert [service["init"] for service in services] == [True, True]
    assert all(parse(service["command"][1:]).params["processes"] for service in services), "a supervisor, for a crash"
    for thing in KUBERNETES:
        if thing["metadata"]["name"].startswith("worker"):
            assert thing["spec"]["template"]["spec"]["shareProcessNamespace"] is True


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
    assert "query: max(" in blocks[0]
    assert "max(<<.Series>>" in page.partition(blocks[0])[2], "every endpoint has the whole, so a sum is too much"
    exposition = (DOCS.parent / "jobrunner" / "metrics" / "exposition.py").read_text("utf-8")
    assert "queue_oldest_age_seconds" in exposition
