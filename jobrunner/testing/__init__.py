"""Test support for applications: the fixtures of `jobrunner.testing.plugin` as functions.

See docs/testing.md.
"""

from jobrunner.testing.enqueued import Enqueued, EnqueuedTask
from jobrunner.testing.inline import inline
from jobrunner.testing.servers import open_server
from jobrunner.testing.worker import JobrunnerWorker, Travel

__all__ = ["Enqueued", "EnqueuedTask", "JobrunnerWorker", "Travel", "inline", "open_server"]
