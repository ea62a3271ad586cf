"""The process that tools run in: it can be killed, whatever a tool does. Free of torch."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.environments.base import is_video
from burnish.utils.media import as_shown, of_array, of_frames
from burnish.utils.supervisor import ChildDied, LoadFailed, Server
from burnish.utils.user_code import awaited, load_object

if TYPE_CHECKING:
    from PIL.Image import Image

    Result = str | Image

GIVEN = ("images", "seed")  # keyword-only parameters that no model writes; see ``takes``


class ToolProcess:
    """Calls functions by name. It starts with the first call, and anew after a call that it did not survive."""

    def __init__(
        self,
        functions: Mapping[str, str],
        timeout: float,
        *,
        arguments: Mapping[str, Mapping[str, Any]],
        starting: float,
    ) -> None:
        """Args: ``arguments`` are of classes, of which an instance is called; all is loaded in ``starting`` seconds."""
        self._functions, self._timeout = dict(functions), timeout
        self._arguments, self._starting = {name: dict(own) for name, own in arguments.items()}, starting
        self._server: Server | None = None

    def call(
        self, name: str, arguments: Mapping[str, Any], images: Sequence[Image] = (), seed: int = 0
    ) -> list[Result]:
        """What a function returned, as texts, pictures and videos, or why it did not.

        Args:
            name: of the function.
            arguments: that the model gave.
            images: of the dialogue so far, and
            seed: of this call in its dialogue, for functions with parameters of these names.

        Raises:
            RuntimeError: the functions can't be loaded there.
        """
        try:
            answer: list[Result] = self._started().call(
                self._timeout, f"took longer than {self._timeout:g} seconds", name, dict(arguments),
                {"images": list(images), "seed": seed},
            )  # fmt: skip
            return answer
        except RecursionError:  # of pickling: nothing was sent
            return [f"error: the arguments of {name} are nested too deeply"]
        except TimeoutError as error:
            why = str(error)
        except ChildDied:
            why = "ended its process"
        self.close()
        return [f"error: {name} {why}"]

    def close(self) -> None:
        """End the process."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _started(self) -> Server:
        if self._server is None:
            self._server = Server(_load, (self._functions, self._arguments))
            try:
                self._server.load(self._starting, f"it took longer than {self._starting:g} seconds")
            except (LoadFailed, TimeoutError, ChildDied) as error:
                self.close()
                why = "its process ended" if isinstance(error, ChildDied) else error
                raise RuntimeError(f"the tools can't be loaded: {why}") from None
        return self._server


def called(tool: Callable[..., Any]) -> Callable[..., Any]:
    """What answers the calls of a tool: the function, or of a class what its instances are called by."""
    return vars(tool).get("__call__", tool) if isinstance(tool, type) else tool


def takes(tool: Callable[..., Any], name: str) -> bool:
    """Whether a tool has a keyword-only parameter of that name."""
    parameter = inspect.signature(called(tool)).parameters.get(name)
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY


def _load(given: tuple[dict[str, str], dict[str, dict[str, Any]]]) -> Callable[..., list[Result]]:
    paths, arguments = given
    sys.stdout = sys.stderr  # what a tool prints is no metric of the run
    tools = {name: load_object(path, "tool") for name, path in paths.items()}
    functions = {
        name: tool(**arguments.get(name, {})) if isinstance(tool, type) else tool for name, tool in tools.items()
    }
    wanted = {name: [one for one in GIVEN if takes(tool, one)] for name, tool in tools.items()}

    def answer(name: str, said: Mapping[str, Any], given: Mapping[str, Any]) -> list[Result]:
        return _answer(functions[name], {**said, **{one: given[one] for one in wanted[name]}})

    return answer


def _answer(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[Result]:
    try:
        returned = awaited(function(**arguments))
        parts = list(returned) if isinstance(returned, list | tuple) else [returned]
        if not any(_is_picture(part) for part in parts):
            return [str(returned)]
        return [_picture(part) if _is_picture(part) else str(part) for part in parts]
    except (Exception, SystemExit) as error:  # the function is the user's, the arguments are the model's
        return [f"error: {type(error).__name__}: {error}"]


def _is_picture(value: Any) -> bool:
    return type(value).__module__.startswith("PIL.") or type(value).__name__ == "ndarray"


def _picture(value: Any) -> Any:
    from PIL import Image

    if isinstance(value, Image.Image):
        return as_shown(value)
    return of_frames(value) if is_video(value) else of_array(value)
