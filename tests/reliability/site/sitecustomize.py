"""Read by every Python process that is started with this folder on its path: see tests/reliability/tampering.py."""

import os

if any(name.startswith("JOBRUNNER_TEST_TAMPER_") for name in os.environ):
    from tests.reliability import tampering

    tampering.install()

if "_JOBRUNNER_SOAK_HISTORY" in os.environ:
    from jobrunner.soak.history import recorder

    recorder.install_if_asked()
