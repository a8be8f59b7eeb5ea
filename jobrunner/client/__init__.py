"""The API for programs that enqueue: clients, handles on tasks, bare queues, and the client of the process."""
