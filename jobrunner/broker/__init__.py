"""Everything about the server: keys, scripts, calls, drivers, connections, the embedded server."""
