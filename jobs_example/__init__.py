"""Examples of what a company does with jobrunner, on real data: the 336 776 flights that left New York in 2013.

Where to begin reading:

* ``flights``: a data pipeline, in Python and on Spark: every flight of the year, cleaned, joined and stored.
* ``jobs``: background jobs, one for each thing that they are used for.
* ``dataset``, ``punctuality``, ``office``: where the data come from and what is computed of them; plain Python without
  jobrunner.
* ``demos``: ``jobrunner demo``: runs either of them on real processes, kills some, and checks the outcome.
"""
