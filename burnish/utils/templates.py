"""Chat templates, which come with models from anywhere: filled in by a process of their own, within bounds.

Jinja's sandbox keeps a template from files and code, but not from loops within loops, or from texts that double.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from burnish.utils.supervisor import ChildDied, Server

SECONDS = 30  # for one chat; it takes less than a millisecond
MEMORY = 1 << 30  # bytes of addresses of the process
LONGEST = 1 << 24  # characters of a chat
KEPT, LONGEST_KEPT = 1024, 1 << 15  # chats whose text is kept for when they come again, and characters of each
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one thing in messages; templates read the first


class TemplateRefused(Exception):
    """A template can't be filled in; the message says why."""


def filled(template: str, values: Mapping[str, Any]) -> str:
    """A chat template with values, as transformers fills it in.

    Args:
        template: Jinja.
        values: its variables; what is no JSON is seen as text that names its type.

    Raises:
        TemplateRefused: it is no template, raises, or needs more time, memory or text than any chat does.
    """
    given = {name: _plain(value) for name, value in values.items()}
    given["messages"] = [_message(one) for one in given["messages"]]
    asked = template + json.dumps(given, ensure_ascii=False)
    with _OURS.lock:
        if (known := _OURS.known.get(asked)) is not None:
            return known
        try:
            text, why = _OURS.server().call(SECONDS, f"it takes more than {SECONDS} seconds", template, given)
        except (ChildDied, TimeoutError) as error:
            _OURS.close()
            died = isinstance(error, ChildDied)
            raise TemplateRefused(f"the process that fills it in ended ({error})" if died else str(error)) from None
    if why:
        raise TemplateRefused(why)
    if len(asked) + len(text) <= LONGEST_KEPT and "strftime_now" not in template:  # which tells the time
        with _OURS.lock:
            _OURS.known[asked] = str(text)
            if len(_OURS.known) > KEPT:
                del _OURS.known[next(iter(_OURS.known))]
    return str(text)


class _Process:
    """The process of this one, if one was needed."""

    def __init__(self) -> None:
        self.lock, self.running, self.known = threading.Lock(), None, {}

    lock: threading.Lock
    known: dict[str, str]  # texts of chats, the oldest first
    running: Server | None

    def server(self) -> Server:
        if self.running is None:
            self.running = Server(_serve, None)
            self.running.load(SECONDS, f"its process takes more than {SECONDS} seconds to start")
        return self.running

    def close(self) -> None:
        if self.running is not None:
            self.running.close()
        self.running = None


_OURS = _Process()
close = _OURS.close
atexit.register(lambda: _OURS.close())
os.register_at_fork(after_in_child=lambda: _OURS.__init__())  # type: ignore[misc]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what is None, its reasoning by every name that templates know it by."""
    said = {name: value for name, value in message.items() if value is not None}
    reasoning = next((said[name] for name in REASONING if name in said), None)
    return said if reasoning is None else {"thinking": reasoning, **said, REASONING[0]: reasoning}


def _plain(value: Any) -> Any:
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return f"<{type(value).__name__}>"


# What the process runs


def _serve(_: None) -> Callable[[str, dict[str, Any]], tuple[str, str]]:
    import resource

    with contextlib.suppress(ValueError, OSError):  # macOS bounds no addresses
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return _answer


def _answer(template: str, values: dict[str, Any]) -> tuple[str, str]:
    """The text, or why there is none."""
    signal.alarm(SECONDS + 1)  # ends this process also where one operation never returns, and its owner is gone
    try:
        text = _compiled(template).render(values)
    except MemoryError:
        return "", f"it needs more than {MEMORY >> 30} GiB of memory"
    except Exception as error:
        from jinja2 import TemplateError

        said = str(error)[:1000]
        return "", said if isinstance(error, TemplateError) and said else f"{type(error).__name__}: {said}"
    finally:
        signal.alarm(0)
    return ("", f"it writes {len(text)} characters, more than {LONGEST}") if len(text) > LONGEST else (text, "")


@lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    """With what transformers gives to chat templates."""
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Public(Namespace):
        """Without names that lead into Python."""

        def __init__(*args: Any, **named: Any) -> None:
            values = dict(*args[1:], **named)
            for name in values:
                _refuse_hidden(name)
            Namespace.__init__(args[0], values)

        def __setitem__(self, name: str, value: Any) -> None:
            _refuse_hidden(name)
            super().__setitem__(name, value)

    def _refuse_hidden(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace can't have {name!r}, which begins with an underscore")

    def refuse(message: str) -> None:
        raise TemplateError(message)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), loopcontrols]
    )
    sandbox.filters["tojson"] = _as_json
    sandbox.globals |= {"raise_exception": refuse, "strftime_now": _now, "dict": _Dictionaries(), "namespace": Public}
    return sandbox.from_string(template)


class _Dictionaries:
    """``dict`` without what the class offers."""

    def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
        return dict(*args, **named)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _generation() -> Any:
    """transformers' own tag around responses, which changes no text."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        def parse(self, parser: Any) -> nodes.Node:
            line: int = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

        def _said(self, caller: Callable[[], str]) -> str:
            return caller()

    Generation.tags = {"generation"}
    return Generation


def _as_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
