"""Several worker processes, and the one that looks after them."""
