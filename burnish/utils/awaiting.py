"""Functions that are ``async``: awaited in event loops beside, which live as long as the process."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from functools import cache
from typing import Any


def awaited(value: Any, loop: str = "functions") -> Any:
    """A value, or what an awaitable gives: those of a loop share it, so that sessions and locks go on working.

    Raises:
        BaseException: what the awaitable raises.
    """
    if not inspect.isawaitable(value):
        return value
    return asyncio.run_coroutine_threadsafe(_of(value), _loop(loop)).result()


async def _of(value: Any) -> Any:
    try:
        return await value
    except SystemExit as error:  # which would end the loop, and all who wait for it would wait for ever
        raise RuntimeError(f"it called exit({error})") from error


@cache
def _loop(name: str) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=f"async {name}", daemon=True).start()
    return loop


os.register_at_fork(after_in_child=_loop.cache_clear)  # the threads are the parent's
