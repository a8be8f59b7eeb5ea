"""``jobrunner demo flights``: the pipeline of ``jobs_example.flights`` on a whole year, with three kinds of kills."""
