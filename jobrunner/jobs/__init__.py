"""Jobs: their declaration, their typed parameters, and enqueueing."""
