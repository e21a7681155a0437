"""Waiting for a condition, never for a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 10.0, interval: float = 0.01) -> T:
    """Call condition until it returns something true, and return that.

    timeout, interval: seconds. Raises AssertionError, with the last answer, when time is up.
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            name = getattr(condition, "__name__", repr(condition))
            raise AssertionError(f"{name} still answers {answer!r} after {timeout} s")
        threading.Event().wait(interval)
