"""The calls to the server: one function for each operation, one module for each kind of object."""
