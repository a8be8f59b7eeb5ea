"""`jobrunner completion`: the script that teaches a shell to complete commands, options and names."""

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from jobrunner.cli.options import CommonOptions, with_shared_options
from jobrunner.cli.output import answer_json

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_JOBRUNNER_COMPLETE"
_EXAMPLES = """\b
Examples:
  jobrunner completion bash > ~/.local/share/bash-completion/completions/jobrunner
  jobrunner completion zsh > "${fpath[1]}/_jobrunner"
  jobrunner completion fish > ~/.config/fish/completions/jobrunner.fish
  eval "$(jobrunner completion bash)"
"""


@click.command(epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@with_shared_options
def completion(shared: CommonOptions, shell: str | None) -> None:
    """Prints the completion script for SHELL; default: the shell that the variable SHELL names.

    Names of queues and periodic jobs are read from the server if it answers at once; names of jobs and pipelines from
    the sources of the modules on the command line or in [tool.jobrunner]. Completion never starts a server.
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
    # Not `made.source()`: that of bash runs bash to look at its version.
    return made.source_template % made.source_vars()
