"""The part of a worker process that acts for all workers. One of them, the leader, acts at a time."""
