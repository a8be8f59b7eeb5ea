"""Stores large payloads in a folder or an object store: the task's hash has a reference (the claim check pattern)."""
