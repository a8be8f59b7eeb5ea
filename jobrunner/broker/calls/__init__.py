"""What can be asked of the server: one function for each verb, grouped by what it is about."""
