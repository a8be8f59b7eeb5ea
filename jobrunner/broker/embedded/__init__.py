"""The embedded server: a private Redis in a folder of the application, shared by its processes."""
