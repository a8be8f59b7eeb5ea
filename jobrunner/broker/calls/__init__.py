"""The calls to the server: one function for each operation, grouped by what they act on."""
