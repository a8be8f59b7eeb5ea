"""What a company does with jobrunner, on real data: the 336 776 flights that left New York in 2013.

Where to begin reading:

* ``jobs``: the jobs themselves, one for each thing that background work is used for.
* ``demo``: ``jobrunner demo``: runs them all on two workers, kills one of them, and checks the outcome.
* ``dataset``, ``punctuality``, ``bootstrap``, ``geography``, ``weather``: what the jobs compute;
  plain Python without jobrunner.
* ``partner``: the third party with the bad habits: a local HTTP server that really fails.
"""
