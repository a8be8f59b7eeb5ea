"""Test support for applications: the fixtures of `jobrunner.testing.plugin` as functions.

See docs/testing.md.
"""

from jobrunner.testing.enqueued import Enqueued, EnqueuedTask
from jobrunner.testing.holds import Hold
from jobrunner.testing.inline import inline
from jobrunner.testing.servers import open_server
from jobrunner.testing.worker import JobrunnerWorker, RunSummary, Travel

__all__ = ["Enqueued", "EnqueuedTask", "Hold", "JobrunnerWorker", "RunSummary", "Travel", "inline", "open_server"]
