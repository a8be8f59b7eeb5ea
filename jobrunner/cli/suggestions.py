"""`jobrunner completion` and its suggestions: names of queues, jobs, periodic jobs, pipelines.

Invariants: an answer within 0.3 s or none; no output on errors; no server is started, nothing is written,
and no module of the user is run: jobs are found by reading sources.
"""

import ast
import difflib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from jobrunner.broker.call import texts
from jobrunner.broker.keys import split_queue
from jobrunner.cli.options import CommonOptions, with_shared_options
from jobrunner.cli.output import Refusal, answer_json
from jobrunner.client.client import Client
from jobrunner.errors import NO_ANSWER
from jobrunner.formatting import listed
from jobrunner.settings import client_settings, file_settings, project_file

_WITHIN_S = 0.25
_LONGEST_SOURCE = 1_000_000
_NAMED = 10
_MOST = 5_000
"""Most queues that are read for suggestions: a list of more would block the server."""


def queue_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Suggests queues that the server knows."""
    return _offered(lambda: _asked(ctx, "SRANDMEMBER", "queues", _MOST), incomplete)


def check_queue(
    client: Client, name: str | None, *, create: bool | None = None, declared: Iterable[str] = ()
) -> None:  # fmt: skip
    """Raises Refusal for a queue that neither exists nor is declared, with the nearest name; None names no queue.

    A queue is declared when a worker serves it, when a job, a pipeline or `queue(...)` of the configured modules has
    it, or the project's file; `declared` are those that the command itself knows. `create` is the value of --create, in
    commands with that option. Raises InvalidName.
    """
    if name is None or create:
        return
    from jobrunner.inspector.snapshot import is_known  # `jobrunner work` uses the suggestions only

    split_queue(name)
    try:
        if is_known(client, name):
            return
    except NO_ANSWER:  # the node of the list of queues; that of the queue may be there
        return
    served = {queue for worker in client.workers() for queue in worker.queues}
    here = {*declared, *_queues_of_project()}
    if name in served | here or f"{name.partition('/')[0]}/" in here:
        return
    known = sorted({*client.queues(), *served, *(one for one in here if not one.endswith("/"))})
    remedy = "" if create is None else "; --create does it all the same"
    raise Refusal(f"there is no queue {name!r}; {nearest_of(name, known, none='no queue was ever used')}{remedy}")


def _queues_of_project() -> Iterator[str]:
    """Queues that the configured modules declare, as in `declared_queues`, and those of the project's file."""
    settings = file_settings()
    yield from settings.queues
    for module in module_trees(settings.modules):
        yield from declared_queues(module)


def nearest_of(name: str, known: list[str], *, none: str) -> str:
    """The end of the error for an unknown name: the nearest known name, else all known names, else `none`."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known are {listed(known, _NAMED)}" if known else none


def with_create(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --create: for a queue that neither exists nor is declared."""
    help_text = "Accepts a QUEUE that neither exists nor is declared."
    return click.option("--create", is_flag=True, help=help_text)(command)


def worker_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Suggests workers with a recent heartbeat."""
    return _offered(lambda: _asked(ctx, "ZRANGE", "workers", 0, _MOST), incomplete)


def periodic_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Suggests periodic jobs that workers published, and those that were added at run time."""
    return _offered(lambda: [*_asked(ctx, "HKEYS", "periodics"), *_asked(ctx, "HKEYS", "periodics_added")], incomplete)


def added_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Suggests periodic jobs that were added at run time."""
    return _offered(lambda: _asked(ctx, "HKEYS", "periodics_added"), incomplete)


def job_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Suggests jobs that the given or configured modules declare."""
    return _offered(lambda: (name for module in _modules(ctx) for name in declared_jobs(module)), incomplete)


def pipeline_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Suggests pipelines that the modules declare, and pipelines with queues on the server."""

    def find() -> Iterator[str]:
        for module in _modules(ctx):
            yield from declared_pipelines(module)
        yield from (name.partition("/")[0] for name in _asked(ctx, "SRANDMEMBER", "queues", _MOST) if "/" in name)

    return _offered(find, incomplete)


def pipeline_queues(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Suggests queues of pipelines on the server."""
    return _offered(lambda: [name for name in _asked(ctx, "SRANDMEMBER", "queues", _MOST) if "/" in name], incomplete)


def declared_jobs(module: ast.Module) -> Iterator[str]:
    """Names of the functions and classes below `@job` or `@job(...)` in a module."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for mark in node.decorator_list:
                if _called(mark) == "job":
                    yield _given(mark, "name") or node.name


def declared_queues(module: ast.Module) -> Iterator[str]:
    """Queues of the jobs in a module, those of `queue(...)`, and names of pipelines with a trailing slash."""
    for node in ast.walk(module):
        for mark in getattr(node, "decorator_list", ()):
            if _called(mark) == "job":
                yield _given(mark, "queue") or "default"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("queue", "jobrunner.queue"):
            yield from _first_text(node)
    yield from (f"{name}/" for name in declared_pipelines(module))


def declared_pipelines(module: ast.Module) -> Iterator[str]:
    """Names given to `Pipeline(...)` in a module."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _called(node) == "Pipeline":
            yield from _first_text(node)


def _offered(find: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    found: list[str] = []

    def look() -> None:
        with suppress(Exception):  # no error may disturb a person who is typing
            for name in find():
                found.append(name)

    # A name server or a disk may be slow; the process ends without waiting for this thread.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_WITHIN_S)
    return sorted({name for name in list(found) if name.startswith(incomplete)})


def _asked(ctx: click.Context, verb: str, key: str, *words: int) -> list[str]:
    from jobrunner.broker.broker import Broker
    from jobrunner.broker.call import command
    from jobrunner.broker.connect import Endpoint, unix_url
    from jobrunner.broker.keys import Keys

    settings = client_settings(ctx.params.get("url"), ctx.params.get("prefix"))
    endpoint = Endpoint(settings.url, timeout_s=_WITHIN_S)
    if endpoint.embedded is not None:
        status = endpoint.embedded.status()
        if not status.running:
            return []
        endpoint = Endpoint(unix_url(status.socket), timeout_s=_WITHIN_S)
    broker = Broker(endpoint, retry_timeout_s=0)
    try:
        names: list[str] = broker.run(command(verb, getattr(Keys(settings.prefix), key), *words, read=texts))
        return names
    finally:
        broker.close()


def _modules(ctx: click.Context) -> Iterator[ast.Module]:
    yield from module_trees(ctx.params.get("modules") or file_settings().modules)


def module_trees(modules: Iterable[str]) -> Iterator[ast.Module]:
    """Parses modules without running them; leaves out modules that are not found, too long, or no valid Python."""
    project = project_file()
    for module in modules:
        for folder in (Path(), *([] if project is None else [project.parent]), *map(Path, sys.path)):
            place = folder.joinpath(*module.split("."))
            path = next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)
            if path is not None:
                with suppress(OSError, SyntaxError, ValueError):  # a worker cannot load it either, and reports that
                    if path.stat().st_size <= _LONGEST_SOURCE:
                        yield ast.parse(path.read_bytes())  # which honours the encoding that a source declares
                break


def _called(node: ast.expr) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""


def _first_text(call: ast.Call) -> Iterator[str]:
    """The first argument of a call, when it is a text."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        yield first.value


def _given(mark: Any, name: str) -> str | None:
    for option in getattr(mark, "keywords", ()):
        if option.arg == name and isinstance(option.value, ast.Constant):
            return str(option.value.value)
    return None


SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_JOBRUNNER_COMPLETE"
_EXAMPLES = """\b
Examples:
  jobrunner completion bash > ~/.local/share/bash-completion/completions/jobrunner
  jobrunner completion zsh > "${fpath[1]}/_jobrunner"
  jobrunner completion fish > ~/.config/fish/completions/jobrunner.fish
  eval "$(jobrunner completion bash)"
"""

# Not click's script, which uses the words of readline: readline splits them at colons, which queue names may have, and
# inserts an answer after the last colon.
_BASH = """\
%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} kept= type value
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local word=${words[-1]#--*=}
    [[ $COMP_WORDBREAKS == *:* ]] && kept=${word%%"${word##*:}"}
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$kept"}") ;;
        esac
    done < <(COMP_WORDS=$line COMP_CWORD=$((${#words[@]} - 1)) %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_OF_OPTION: dict[str, dict[str, str]] = {
    "bash": {},
    "zsh": {"%(complete_func)s() {\n": "%(complete_func)s() {\n    compset -P '--*='\n",
            "compadd -U": 'compadd -i "$IPREFIX" -U'},
    "fish": {"echo $metadata[2];":
             "set -l option (string match -r -- '^--[^=]+=' (commandline -t)); echo \"$option$metadata[2]\";"},
}  # fmt: skip
"""Additions to click's scripts: for `--queue=ma` the answer is only the value, and must replace only the value."""


@click.command(epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@with_shared_options
def completion(shared: CommonOptions, shell: str | None) -> None:
    """Print the completion script for a shell.

    SHELL defaults to the shell that the variable SHELL names. Names of queues and periodic jobs are read from the
    server if it answers at once; names of jobs and pipelines from the sources of the modules on the command line or
    in [tool.jobrunner]. Completion never starts a server.
    """
    chosen = shell or _own_shell()
    script = _script(chosen)
    if shared.as_json:
        answer_json({"shell": chosen, "script": script})
    else:
        click.echo(script)


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"which shell? name one of {', '.join(SHELLS)}")
    return name


def _script(shell: str) -> str:
    from jobrunner.cli.main import jobrunner

    found = get_completion_class(shell)
    assert found is not None
    made = found(jobrunner, {}, "jobrunner", _VARIABLE)
    template = _BASH if shell == "bash" else made.source_template
    for there, instead in _OF_OPTION[shell].items():
        template = template.replace(there, instead, 1)
    return template % made.source_vars()
