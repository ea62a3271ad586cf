"""The process that tools run in: it can be killed, whatever a tool does. Free of torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from burnish.utils.supervisor import ChildDied, LoadFailed, Server
from burnish.utils.user_code import load_object

STARTING = 60.0  # seconds in which the functions must be loaded


class ToolProcess:
    """Calls functions by name. It starts with the first call, and anew after a call that it did not survive."""

    def __init__(self, functions: Mapping[str, str], timeout: float) -> None:
        self._functions, self._timeout = dict(functions), timeout
        self._server: Server | None = None

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a function returned, as text, or why it did not.

        Raises:
            RuntimeError: the functions can't be loaded there.
        """
        try:
            answer: str = self._started().call(
                self._timeout, f"took longer than {self._timeout:g} seconds", name, dict(arguments)
            )
            return answer
        except TimeoutError as error:
            why = str(error)
        except ChildDied:
            why = "ended its process"
        self.close()
        return f"error: {name} {why}"

    def close(self) -> None:
        """End the process."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _started(self) -> Server:
        if self._server is None:
            self._server = Server(_load, self._functions)
            try:
                self._server.load(STARTING, f"it took longer than {STARTING:g} seconds")
            except (LoadFailed, TimeoutError, ChildDied) as error:
                self.close()
                why = "its process ended" if isinstance(error, ChildDied) else error
                raise RuntimeError(f"the tools can't be loaded: {why}") from None
        return self._server


def _load(paths: dict[str, str]) -> Callable[..., str]:
    sys.stdout = sys.stderr  # what a tool prints is no metric of the run
    functions = {name: load_object(path, "tool") for name, path in paths.items()}
    return lambda name, arguments: _answer(functions[name], arguments)


def _answer(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    try:
        return str(function(**arguments))
    except (Exception, SystemExit) as error:  # the function is the user's, the arguments are the model's
        return f"error: {type(error).__name__}: {error}"
