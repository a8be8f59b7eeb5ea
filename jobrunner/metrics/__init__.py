"""Metrics for Prometheus: read from the server, so they are of all processes together and outlive each of them."""

from jobrunner.formatting import require_extra

require_extra("jobrunner.metrics", "metrics", "prometheus_client")
