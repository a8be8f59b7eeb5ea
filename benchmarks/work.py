"""jobrunner's worker process in the benchmarks: the engine of `jobrunner work`, ten threads, default options."""

from jobrunner import Worker

if __name__ == "__main__":
    Worker(modules=["benchmarks.noop_jobs"], concurrency=10, executor="threads").run()
