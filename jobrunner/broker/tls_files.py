"""Finds the fault in the files that the TLS options of a URL name.

OpenSSL names neither the option nor the file: a key with another password is `PEM lib`, a file that is gone is
`Error 2`, as if there were no server. So after a failed connect each file is tried by itself.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobrunner.formatting import describe


def file_fault(options: Mapping[str, Any]) -> str:
    """The first file that cannot be used, with its option and the reason; '' when all can be."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for option, argument in (("ssl_ca_certs", "cafile"), ("ssl_ca_path", "capath")):
        file = options.get(option)
        try:
            if file:
                context.load_verify_locations(**{argument: file})
        except (OSError, ValueError) as error:
            return f"{option} {_describe(file)}: {_reason(error)}"
    certificate, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
    if not certificate:
        return ""
    option, file = ("ssl_keyfile", key) if key else ("ssl_certfile", certificate)
    try:
        with Path(certificate).open("rb"):
            pass
    except OSError as error:
        return f"ssl_certfile {_describe(certificate)}: {_reason(error)}"
    try:
        context.load_cert_chain(certificate, key, options.get("ssl_password") or "")  # without one OpenSSL would ask
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            return f"the key in {option} {_describe(file)} is not that of the certificate in ssl_certfile"
        if options.get("ssl_password"):
            return f"{option} {_describe(file)} with its ssl_password: {_reason(error)}"
        return f"ssl_certfile {_describe(certificate)}, or its key: {_reason(error)}"
    except (OSError, ValueError) as error:
        return f"{option} {_describe(file)}: {_reason(error)}"
    return ""


def are_usable(options: Mapping[str, Any]) -> bool:
    """Whether OpenSSL takes the options that name no file."""
    version, ciphers = options.get("ssl_min_version"), options.get("ssl_ciphers")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if version is not None:
            context.minimum_version = version
        if ciphers:
            context.set_ciphers(ciphers)
    except (ssl.SSLError, TypeError, ValueError):
        return False
    return True


def _describe(file: object) -> str:
    return describe(str(file), 200)


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
