"""Running attempts: the runner, and its executors on threads, event loops and in child processes."""
