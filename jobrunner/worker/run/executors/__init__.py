"""How attempts are run: on threads, as coroutines, or in processes."""
