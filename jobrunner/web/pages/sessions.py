"""Sessions of the login page: logged-in browsers with time and address."""

from jobrunner.web.auth import Role
from jobrunner.web.routing import Context, Page, Values


def _sessions(context: Context) -> tuple[str, Values]:
    known = context.sessions
    is_admin = context.role is Role.ADMIN
    found = [one for one in (known.all() if known else []) if is_admin or one.name == context.identity.name]
    mine = known.of(context.request) if known else None
    return "sessions.html", {
        "nav": context.snapshot().nav,
        "sessions": found,
        "mine": mine.id if mine else "",
        "has_sessions": known is not None,
        "whose": "everybody" if is_admin else context.identity.name,
    }


pages: list[Page] = [
    Page(path="/sessions", name="sessions", endpoint=_sessions),
]
