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
    """Prints the completion script of SHELL; without one, of the shell in SHELL of the environment.

    Names of queues and periodic jobs come from the server when it answers at once; names of jobs and pipelines from the
    sources of the modules named, or those of [tool.jobrunner]. No server is started for it.
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
