"""The checks of `jobrunner doctor`."""
