"""The fetch loop: reserves tasks, starts them, and keeps their reports until the server has taken them."""
