"""``jobrunner demo jobs``: runs the jobs of ``jobs_example.jobs``, kills a worker, and checks the outcome.

* ``run``: the demo; ``workload``: what it enqueues; ``partner``: the third party with the bad habits.
* ``watch`` looks at the server, ``state`` is what it sees, ``picture`` draws that; ``verdict`` judges the end.
"""
