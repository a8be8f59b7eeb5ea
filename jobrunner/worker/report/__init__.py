"""Reporting outcomes to the server, and what follows a report."""
