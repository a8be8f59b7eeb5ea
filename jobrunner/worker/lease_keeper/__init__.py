"""The lease keeper: a process beside the worker that renews its leases and recovers them when it dies."""
