"""A soak: mixed work for minutes or hours under random faults, a ledger outside of Redis, live figures, a verdict."""
