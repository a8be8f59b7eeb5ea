"""Logs of commands (see jobrunner/logs.py)."""

from jobrunner.logs import FORMATS, log_to_stderr, warnings_to_stderr

__all__ = ["FORMATS", "log_to_stderr", "warnings_to_stderr"]
