"""Functions of users that are ``async``: awaited in one event loop beside, which lives as long as the process."""

from __future__ import annotations

import asyncio
import inspect
import threading
from functools import cache
from typing import Any


def awaited(value: Any) -> Any:
    """A value, or what an awaitable gives: all of them share a loop, so that sessions and locks go on working.

    Raises:
        BaseException: what the awaitable raises.
    """
    if not inspect.isawaitable(value):
        return value
    return asyncio.run_coroutine_threadsafe(_of(value), _loop()).result()


async def _of(value: Any) -> Any:
    return await value


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="async functions", daemon=True).start()
    return loop
