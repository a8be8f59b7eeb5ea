"""The demos behind ``jobrunner demo``: real processes, some of which are killed, and a verdict on the outcome.

* ``jobs``: background jobs on two workers; ``flights``: the data pipeline in Python and on Spark.
* ``play``, ``fleet``, ``screen``, ``checks``: what both need: a folder of their own, worker processes, a live view, a
  table of what must be true.
"""
