"""The lease keeper: a process next to the worker that renews its leases and recovers them when it dies."""
