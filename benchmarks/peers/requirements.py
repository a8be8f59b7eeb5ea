"""The requirements of each peer, with the oldest versions that its settings were tried with, and jobrunner's own."""

import tomllib
from pathlib import Path


def _of_jobrunner() -> tuple[str, ...]:
    """The requirements of `jobrunner-queue[fast]`; its code is that of this checkout."""
    project = tomllib.loads(Path(__file__, "../../../pyproject.toml").resolve().read_text())["project"]
    return (*project["dependencies"], *project["optional-dependencies"]["fast"])


REQUIREMENTS = {
    "jobrunner": _of_jobrunner(),
    "dramatiq": ("dramatiq[redis]>=2.0,<3", "hiredis>=3"),
    "taskiq": ("taskiq>=0.12", "taskiq-redis>=1.1", "hiredis>=3", "uvloop>=0.20"),
    "rq": ("rq>=3.0", "hiredis>=3"),
    "celery": ("celery[redis]>=5.7", "hiredis>=3"),
    "huey": ("huey>=3.5", "redis>=5", "hiredis>=3"),
    "arq": ("arq>=0.28", "uvloop>=0.20", "hiredis>=3"),
    "saq": ("saq[redis]>=0.26", "typing-extensions>=4", "uvloop>=0.20", "hiredis>=3"),  # it uses it without saying so
    "streaq": ("streaq>=7.2", "uvloop>=0.20"),
    "ardiq": ("ardiq>=1.2", "uvloop>=0.21"),
    "blitzq": ("blitzq>=1.1", "uvloop>=0.21", "hiredis>=3"),
    "mayu": ("mayu>=0.2.5",),
    "docket": ("pydocket>=0.27", "uvloop>=0.20", "hiredis>=3"),
    "tasktiger": ("tasktiger>=0.26", "hiredis>=3"),
}

PYTHON = {"ardiq": (3, 12), "blitzq": (3, 12), "mayu": (3, 13)}
"""The oldest Python of the peers that need a newer one than jobrunner does."""
