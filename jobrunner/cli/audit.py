"""The audit log of commands that change something: the user of the operating system, the host, and what was done."""

from jobrunner.client.client import Client
from jobrunner.inspector import audit


def note(client: Client, action: str, what: str, outcome: str) -> None:
    """Notes what a command did. A user of the server who may not write the log is told so on stderr, and it is done."""
    who, host = audit.operator()
    audit.write(client, who=who, role="command line", action=action, what=what, outcome=outcome, address=host)
