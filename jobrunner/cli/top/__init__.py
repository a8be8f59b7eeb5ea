"""`jobrunner top`: a live view in the terminal."""
