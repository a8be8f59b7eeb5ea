"""``jobrunner demo lakehouse``: a million orders into two tables, while everything that can be killed is killed."""
