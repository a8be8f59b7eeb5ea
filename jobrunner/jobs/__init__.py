"""Jobs: how they are declared, what their parameters may be, and how they are enqueued."""
