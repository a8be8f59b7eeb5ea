"""The part of a worker process that acts for all workers. Only one worker at a time, the leader, acts."""
