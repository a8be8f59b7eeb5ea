"""Reserving tasks: which queue is asked next, for how many, and when."""
