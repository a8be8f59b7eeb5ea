"""Metrics for Prometheus: read from the server, so they are of all processes together and outlive each of them."""
