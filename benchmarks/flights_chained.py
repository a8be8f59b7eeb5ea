"""The flights' pipeline with all of its stations in one chain, for `benchmarks.spark_flights`."""

from jobs_example.flights import SOON, flights

flights.chain("raw", batch=170_000, max_wait=2.0, lease=SOON)
