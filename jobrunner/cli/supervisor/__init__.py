"""Several worker processes, and the supervisor that restarts them."""
