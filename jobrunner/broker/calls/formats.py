"""The format: what the keys below a prefix look like, as one number that every version compares with its own.

It is raised only by a version that writes what an older one would misread. What an older version does not know and may
leave alone (a further field of a hash, a further kind of event, a further key) does not raise it, so that two versions
work side by side during a deploy.
"""

import re
from functools import partial

from jobrunner.broker.call import Call, command
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.errors import NewerFormat

FORMAT = 1
"""What this version writes, and the newest that it reads."""
_WHOLE = re.compile(rb"[0-9]{1,9}")


def check(keys: Keys) -> Call[None]:
    """Its reply is read as NewerFormat when a newer version wrote here. A user who may not look is not told."""
    return command("GET", keys.format, read=partial(refuse_newer, keys), may_fail=True)


def refuse_newer(keys: Keys, found: bytes | None) -> None:
    """Raises NewerFormat when that is the format of a newer version; None: there is none, or nobody may look."""
    if found is not None and not (_WHOLE.fullmatch(found) and int(found) <= FORMAT):
        raise NewerFormat(
            f"the keys below prefix {keys.prefix!r} have format {found[:40].decode('utf-8', 'replace')}, this "
            f"version of jobrunner knows up to format {FORMAT}; nothing was changed: install the version that "
            "the others here have, or choose another prefix"
        )


def note(keys: Keys | QueueKeys) -> Call[None]:
    """Writes the number below a prefix that has none."""
    return command("SETNX", keys.format, FORMAT, read=lambda _: None)
