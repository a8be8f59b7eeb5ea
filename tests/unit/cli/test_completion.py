"""Shell completion: commands, options, and names of existing queues, jobs and tasks."""

import ast
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.shell_completion import ShellComplete

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.cli import suggestions
from jobrunner.cli.main import COMMANDS, jobrunner
from jobrunner.cli.suggestions import SHELLS, declared_jobs, declared_pipelines
from jobrunner.client.client import Client, broker_of, keys_of

SOURCE = """
import jobrunner
from jobrunner import Job, job
from jobrunner.etl import Pipeline

orders = Pipeline("orders", max_hops=3)

@job(queue="mail")
class SendMail(Job): ...

@jobrunner.job(name="sum")
async def add(x: int): ...

@job
def plain(): ...

def not_a_job(): ...
"""
PATIENT = "from jobrunner.cli import main, suggestions; suggestions._WITHIN_S = 60.0; main.main()"
"""The program without the limit on its time, which may be too short on a busy machine."""


@pytest.fixture
def offers(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """offers("queues", "pause", "m"): the completions of the last word, however long they take."""
    monkeypatch.setattr(suggestions, "_WITHIN_S", 60.0)

    def complete(*words: str) -> list[str]:
        *before, incomplete = words
        found = ShellComplete(jobrunner, {}, "jobrunner", "_X").get_completions(before, incomplete)
        return [item.value for item in found]

    return complete


@pytest.fixture
def declared(tmp_path: Path, offers: Any) -> None:
    """A project whose module declares jobs and a pipeline, and would say so if it were run."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(SOURCE + "raise SystemExit('I was run')\n")
    (tmp_path / "pyproject.toml").write_text('[tool.jobrunner]\nmodules = ["shop.jobs", "not.there"]\n')


def test_commands_are_offered_without_importing_them(offers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobrunner.cli.main.import_module", lambda name: pytest.fail(name))

    assert offers("qu") == ["queues"]
    assert offers("") == list(COMMANDS)


def test_subcommands_and_options_are_offered(offers: Any) -> None:
    assert offers("queues", "p") == ["pause", "purge"]
    assert "--max-inflight" in offers("queues", "limit", "--max")
    assert offers("tasks", "list", "--state", "d") == ["dead"]


def test_queues_of_the_server_are_offered_wherever_a_queue_is_asked_for(offers: Any, client: Client) -> None:
    for name in ("mail", "maths", "orders/raw"):
        client.queue(name).push(1)

    for words in (
        *(("queues", "pause"), ("queues", "limit"), ("queues", "purge"), ("dead", "list"), ("dead", "requeue")),
        *(("tasks", "list"), ("tasks", "show", "x", "--queue"), ("history", "list"), ("enqueue", "x", "--queue")),
        ("work", "-q"),
    ):
        assert offers(*words, "ma") == ["mail", "maths"], words
    assert offers("pipeline", "push", "") == ["orders/raw"]
    assert offers("pipeline", "show", "") == ["orders"]


def test_the_server_and_the_prefix_of_the_line_are_asked(offers: Any, server: Any, client: Client) -> None:
    with Client(server.url, "elsewhere") as other:
        other.queue("far").push(1)

    assert offers("queues", "pause", "--prefix", "elsewhere", "") == ["far"]


def test_periodic_jobs_are_offered(offers: Any, client: Client) -> None:
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), {"Nightly": msgspec.json.encode({})}))

    assert offers("periodic", "run", "") == ["Nightly"]


def test_jobs_and_pipelines_are_read_from_sources_that_are_not_run(offers: Any, declared: None) -> None:
    assert offers("enqueue", "") == ["SendMail", "plain", "sum"]
    assert offers("pipeline", "run", "") == ["orders"]
    assert list(declared_jobs(ast.parse(SOURCE))) == ["SendMail", "sum", "plain"]
    assert list(declared_pipelines(ast.parse(SOURCE))) == ["orders"]


def test_trouble_is_silent_and_starts_no_server(
    offers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.jobrunner]\nmodules = ["broken"]\n')
    (tmp_path / "broken.py").write_text("def (")
    for url in (f"unix://{tmp_path}/nothing", "no url at all", f"embedded://{tmp_path}/own"):
        monkeypatch.setenv("JOBRUNNER_URL", url)
        assert offers("queues", "pause", "") == []
        assert offers("enqueue", "") == []

    assert not (tmp_path / "own").exists()
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def deaf() -> Iterator[str]:
    """The URL of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_does_not_answer_is_not_waited_for(
    offers: Any, deaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers("queues", "pause", "")  # imports what it needs
    monkeypatch.setattr(suggestions, "_WITHIN_S", 0.25)
    monkeypatch.setenv("JOBRUNNER_URL", deaf)
    began = time.monotonic()

    assert offers("queues", "pause", "") == []
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_its_script(cli: Callable[..., Any], shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = cli("completion", shell)

    assert (result.code, result.err) == (0, "")
    assert f"_JOBRUNNER_COMPLETE={shell}_complete" in result.out
    assert cli("completion", shell, "--json").value == {"shell": shell, "script": result.out.removesuffix("\n")}
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert cli("completion").out == result.out


def test_an_unknown_shell_is_misuse(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")

    assert cli("completion").code == 2
    assert cli("completion", "tcsh").code == 2


@pytest.fixture
def environment(cli: Callable[..., Any], client: Client, tmp_path: Path, server: Any) -> dict[str, str]:
    """That of a shell in `tmp_path`, where the program and the scripts are. There are queues on the server."""
    for name in ("mail", "maths", "w:heavy"):
        client.queue(name).push(1)
    (tmp_path / "jobrunner").write_text(f"#!/bin/sh\nexec {sys.executable} -c '{PATIENT}' \"$@\"\n")
    (tmp_path / "jobrunner").chmod(0o755)
    for shell in SHELLS:
        (tmp_path / f"script.{shell}").write_text(cli("completion", shell).out)
    return os.environ | {
        "HOME": str(tmp_path),
        "JOBRUNNER_URL": server.url,
        "JOBRUNNER_PREFIX": keys_of(client).prefix,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "TERM": "dumb",
    }


def program(shell: str) -> str:
    """The path of a shell; without it the test is skipped."""
    return shutil.which(shell) or pytest.skip(f"no {shell}: apt-get install {shell}")


COMPLETED = [
    pytest.param("jobrunner queues pau", ["pause"], id="a command"),
    pytest.param("jobrunner queues pause m", ["mail", "maths"], id="queues"),
    pytest.param("jobrunner queues pause w:h", ["w:heavy"], id="a name with a colon"),
    pytest.param("jobrunner work --queue=w:", ["w:heavy"], id="a value of an option"),
    pytest.param("jobrunner completion ", ["bash", "fish", "zsh"], id="a new word"),
]


@pytest.mark.parametrize(("line", "offered"), COMPLETED)
def test_bash_completes_the_line(line: str, offered: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    """Readline replaces what is behind the last colon or equals sign, so what it already has is not offered again."""
    ask = f"source script.bash; COMP_LINE='{line}x' COMP_POINT={len(line)}; _jobrunner_completion jobrunner; "
    run = [program("bash"), "-c", f"COMP_WORDBREAKS=' :='; {ask} printf '%s\\n' \"${{COMPREPLY[@]}}\""]

    told = subprocess.check_output(run, cwd=tmp_path, env=environment, text=True)

    kept = "w:" if "w:" in line else ""
    assert sorted(f"{kept}{word}" for word in told.split()) == offered


@pytest.mark.parametrize(("line", "offered"), COMPLETED)
def test_fish_completes_the_line(line: str, offered: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    run = [program("fish"), "--no-config", "-c", f"source script.fish; complete -C '{line}'"]

    told = subprocess.check_output(run, cwd=tmp_path, env=environment, text=True)

    found = [word.partition("\t")[0] for word in told.splitlines()]
    option = "--queue=" if "--queue=" in line else ""
    assert sorted(found) == [f"{option}{word}" for word in offered]


@pytest.mark.parametrize(
    ("line", "completed"),
    [("jobrunner queues pau", b"queues pause"), ("jobrunner queues pause w:h", b"pause w:heavy"),
     ("jobrunner work -q mai", b"work -q mail"), ("jobrunner work --queue=mai", b"work --queue=mail ")],
)  # fmt: skip
def test_zsh_completes_the_line(line: str, completed: bytes, environment: dict[str, str], tmp_path: Path) -> None:
    near, far = pty.openpty()
    zsh = subprocess.Popen(
        [program("zsh"), "-f", "-i"], cwd=tmp_path, env=environment, stdin=far, stdout=far, stderr=far,
        start_new_session=True,
    )  # fmt: skip
    try:
        said = b""
        os.write(near, b"autoload -Uz compinit; compinit -u -D; source script.zsh; print rea''dy\n")
        for word, then in ((b"ready", f"{line}\t"), (completed, "")):
            until = time.monotonic() + 60
            while word not in said:
                assert select.select([near], [], [], max(until - time.monotonic(), 0))[0], said
                said += os.read(near, 65_536)
            os.write(near, then.encode())
    finally:
        zsh.kill()
        zsh.wait()
        os.close(near)
        os.close(far)
