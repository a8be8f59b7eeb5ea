"""Outcomes on their way to the server: what is reported, in which calls, and what is counted."""
