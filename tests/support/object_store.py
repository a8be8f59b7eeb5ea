"""An S3-compatible server of the tests' own: that of moto, in a process of its own."""

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Bucket:
    """A bucket and its address and credentials."""

    endpoint: str
    name: str = "lake"

    @property
    def environment(self) -> dict[str, str]:
        """The options of deltalake, s3fs and boto3."""
        return {
            "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": self.endpoint, "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip

    @property
    def properties(self) -> dict[str, str]:
        """The options of an Iceberg catalog."""
        return {"s3.endpoint": self.endpoint, "s3.access-key-id": "tests", "s3.secret-access-key": "tests",
                "s3.region": "us-east-1"}  # fmt: skip

    def keys(self, prefix: str) -> list[str]:
        """The keys of up to a thousand objects below a prefix."""
        listed: bytes = urllib.request.urlopen(f"{self.endpoint}/{self.name}?list-type=2&prefix={prefix}").read()
        return re.findall(r"<Key>([^<]*)</Key>", listed.decode())


@contextmanager
def object_store() -> Iterator[Bucket]:
    """Starts a server with an empty bucket; it ends with the block, or with this process."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        bucket = Bucket(f"http://127.0.0.1:{server.stdout.readline().strip()}")
        urllib.request.urlopen(urllib.request.Request(f"{bucket.endpoint}/{bucket.name}", method="PUT")).close()
        yield bucket
    finally:
        server.kill()
        server.communicate()
