"""The jobs of a shop in which four things go wrong; loaded by the worker processes of the rehearsal."""

import ctypes
import os
import time

from jobrunner import Backoff, job

AT_ONCE = Backoff(base=0.05, factor=1, jitter=0)
BROKEN_RELEASE = "1.4.2"


@job(queue="payments", name="ChargeCard", max_attempts=2, backoff=AT_ONCE)
def charge_card(order: int, amount: float) -> float:
    """Works in release 1.4.1; the next one reads a field that orders do not have."""
    time.sleep(0.01)
    if os.environ.get("JOBRUNNER_RELEASE") == BROKEN_RELEASE:
        order_of_shop = {"order": order, "amount": amount}
        return float(order_of_shop["currency"])
    return amount


@job(queue="images", name="Resize", max_attempts=50, backoff=AT_ONCE, keepalive=5)
def resize(picture: str, width: int) -> str:
    """Ends its process for one picture, as the kernel ends one that takes too much memory."""
    if picture == "poison.tiff":
        ctypes.string_at(0)  # a signal to the process may come after the task ended
    time.sleep(0.01)
    return f"{picture}@{width}"


@job(queue="search", name="IndexProduct")
def index_product(product: int) -> int:
    """Quick, but its queue has a rate that was meant for another partner."""
    return product


@job(queue="reports", name="BuildReport")
def build_report(month: int) -> int:
    """Never runs: nobody started the worker of its queue again."""
    return month
