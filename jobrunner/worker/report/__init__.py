"""Reports outcomes to the server: the reported outcome, the calls, the log lines, and the statistics."""
