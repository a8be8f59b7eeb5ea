"""What the jobs of ``jobs_example.jobs`` compute, fetch and write; plain Python without jobrunner."""
