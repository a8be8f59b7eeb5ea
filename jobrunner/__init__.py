"""jobrunner: background jobs for Python on Redis. `public.py` lists its names.

They are imported when the first of them is used (PEP 562), so that what needs none of them starts in half the time: the
lease keeper beside each worker, and most commands.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobrunner.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":  # attributes that Python itself reads of a module
        raise AttributeError(f"module 'jobrunner' has no attribute {name!r}")
    import jobrunner.public

    try:
        found = getattr(jobrunner.public, name)
    except AttributeError:
        raise AttributeError(f"module 'jobrunner' has no name {name!r}") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    import jobrunner.public

    return sorted({*globals(), *jobrunner.public.__all__})
