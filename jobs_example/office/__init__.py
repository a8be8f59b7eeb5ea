"""The computations, requests and files of ``jobs_example.jobs``; plain Python without jobrunner."""
