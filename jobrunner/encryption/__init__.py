"""Encryption and signing of payloads and results with keys that the server never sees."""
