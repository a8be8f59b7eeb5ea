"""Large payloads in a folder or an object store: the hash of their task has a reference (the claim check pattern)."""
