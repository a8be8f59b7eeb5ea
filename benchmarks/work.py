"""jobrunner's worker process in the benchmarks: the engine of `jobrunner work` with default options.

`python -m benchmarks.work CONCURRENCY EXECUTOR`.
"""

import sys

from jobrunner import Worker

if __name__ == "__main__":
    Worker(modules=["benchmarks.noop_jobs"], concurrency=int(sys.argv[1]), executor=sys.argv[2]).run()
