"""Metrics for Prometheus, read from the server: they cover all processes together, and outlive each process."""

from jobrunner.formatting import require_extra

require_extra("jobrunner.metrics", "metrics", "prometheus_client")
