"""Reading queues and history as DataFrames and streams."""
