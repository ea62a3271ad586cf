"""Code that users name: functions, classes, plugins, by ``package.module`` or ``path/to/file.py``.

A file becomes a module whose name holds its path, so that any process that has imported this file can import it, be it
because a configuration names it or because something that was pickled came from it.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

from burnish.utils.addresses import redacted
from burnish.utils.errors import UserError
from burnish.utils.reading import checked_path

FILE = "burnish_file:"  # begins the names of modules that were made of files
OURS = Path(__file__).parents[1]
OBJECT = "object"  # in the place of a module: what ``burnish.load`` was given, by the name that it was given for
_CODE = re.compile(r"(.+\.py|[^\W\d]\w*(\.\w+)*):[^\W\d]\w*", re.DOTALL)
GIVEN: dict[str, Any] = {}  # of this process


class _Files(importlib.abc.MetaPathFinder):
    """Finds files by the names that ``module_name`` gives them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(FILE):
            return None
        return importlib.util.spec_from_file_location(fullname, unquote(fullname.removeprefix(FILE)))


sys.meta_path.append(_Files())  # the last: no other import passes through it


def is_file(where: str) -> bool:
    """Whether the user means a file and not a module."""
    return where.endswith(".py")


def names_code(path: str) -> bool:
    """Whether this is file.py:name or package.module:name."""
    return _CODE.fullmatch(path) is not None


def absolute(where: str, option: str = "") -> str:
    """A file by its full path, so that it is found from other folders; a module as it is."""
    return str(checked_path(where, option).resolve()) if is_file(where) else where


def load_module(where: str) -> ModuleType:
    """The module of that name, or of that file; whatever is wrong in it is raised."""
    if not is_file(where):
        return importlib.import_module(where)
    return importlib.import_module(FILE + absolute(where).replace("%", "%25").replace(".", "%2E"))


def path_of(thing: Any) -> str:
    """Where a class or a function is, as ``load_object`` takes it."""
    module = thing.__module__
    return f"{unquote(module.removeprefix(FILE)) if module.startswith(FILE) else module}:{thing.__qualname__}"


def load_object(path: str, what: str) -> Any:
    """What package.module:name or path/to/file.py:name is; it can be called.

    Args:
        path: of a function or a class.
        what: it is meant to be, for messages.

    Raises:
        UserError: the path leads nowhere, or its module fails to import.
    """
    where, _, name = path.rpartition(":")
    if where == OBJECT:
        if name not in GIVEN:
            raise UserError(
                f"path of {what} is {path!r}: it was a Python object of the process that made this configuration; give "
                f"it to burnish.load again, or write it into a module and give package.module:function"
            )
        return GIVEN[name]
    if not names_code(path):
        raise UserError(f"path of {what} is {path!r}; write package.module:function or file.py:function")
    try:
        module = load_module(where)
    except (Exception, SystemExit) as error:  # the module is the user's: anything may go wrong in it
        lacks = is_file(where) and not Path(absolute(where)).exists()
        why = f"there is no {where}; write" if lacks else f"{where} fails to import: {reason(error)}; fix"
        raise UserError(f"path of {what} is {path!r}, but {why} it, or give another path") from error
    found = getattr(module, name, None)
    if not callable(found):
        near = difflib.get_close_matches(name, [one for one, value in vars(module).items() if callable(value)], n=1)
        way_out = f"did you mean {near[0]}?" if near else "give the name of a function"
        raise UserError(f"path of {what} is {path!r}, but there is no function {name} in {where}; {way_out}")
    return found


def reason(error: BaseException) -> str:
    """What was raised, and where in the user's code."""
    if isinstance(error, UserError):
        return f"{error}{place_of(error)}"
    return f"{type(error).__name__}: {redacted(str(error))}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """Where in the user's code an error was raised; nothing where none of it was reached."""
    libraries = (*sysconfig.get_paths().values(), "<")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*libraries, str(OURS)))]
    return f" ({own[-1].filename}:{own[-1].lineno}, in {own[-1].name})" if own else ""


def code_of(path: str) -> bytes | None:
    """What is in the file of a module or of something in it, which is not run; None where there is none to be found."""
    where = path.rpartition(":")[0] or path
    try:
        if is_file(where):
            return checked_path(where).read_bytes()
        spec = importlib.util.find_spec(where)
        return Path(spec.origin).read_bytes() if spec is not None and spec.origin is not None else None
    except Exception:  # the user's packages are imported on the way, and whatever is wrong is told when it is called
        return None


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
