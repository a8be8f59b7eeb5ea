"""The files that the options of a URL name for TLS, looked at before the first connection."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobrunner.errors import InvalidOption

_FILES = {"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"}
_OF_URL = "of the server's URL"


def check_tls_files(options: Mapping[str, Sequence[str]]) -> None:
    """Raises InvalidOption for a file that cannot be read, or that lacks the key of the client's certificate. Without a
    password for an encrypted key OpenSSL would ask the terminal, for each connection."""
    for option in sorted(_FILES & options.keys()):
        if not os.access(options[option][0], os.R_OK):
            raise InvalidOption(f"{option} {_OF_URL} names no file that can be read: {options[option][0]!r}")
    if "ssl_certfile" not in options:
        if "ssl_keyfile" in options:
            raise InvalidOption(f"ssl_keyfile {_OF_URL} needs ssl_certfile, the certificate of that key")
        return
    option = "ssl_keyfile" if "ssl_keyfile" in options else "ssl_certfile"
    file = Path(options[option][0])
    if not file.is_file():  # a pipe, which can be read once
        return
    content = file.read_bytes()
    if b"PRIVATE KEY" not in content:
        raise InvalidOption(f"{option} {_OF_URL} names a file without a private key: {str(file)!r}; see ssl_keyfile")
    if b"ENCRYPTED" in content and "ssl_password" not in options:
        raise InvalidOption(f"{option} {_OF_URL} names an encrypted key: {str(file)!r}; add its ssl_password")
