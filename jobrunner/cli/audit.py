"""The audit log of commands that change something: the user of the operating system, the host, and what was done."""

from jobrunner.client.client import Client
from jobrunner.inspector import audit


def note(client: Client, action: str, what: str, outcome: str) -> None:
    """Writes a command's change into the audit log. If the Redis user may not write it, a warning goes to stderr."""
    who, host = audit.operator()
    audit.write(client, who=who, role="command line", action=action, what=what, outcome=outcome, address=host)
