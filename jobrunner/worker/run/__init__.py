"""Running one attempt, on a thread, as a coroutine or in a process."""
