"""Access to the server: keys, scripts, calls, drivers, connections, and the embedded server."""
