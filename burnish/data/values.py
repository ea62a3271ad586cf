"""Values of a record: under the keys that published data sets use, those that options name, and templates over them."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Container, Hashable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from burnish.options.data import INPUTS, RecordOptions
from burnish.types.prompt import Prompts
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.reading import checked_path, read_text

log = logging.getLogger(__name__)

_SURROGATE = re.compile("[\ud800-\udfff]")
# json.dumps makes such an object for each value, which takes longer than writing a short record
_UNICODE = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str)
_ASCII = json.JSONEncoder(default=str, sort_keys=True)


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value of a key, in which dots lead into nested objects; None if there is none."""
    if key in values or "." not in key:
        return values.get(key)
    here: Any = values
    for step in key.split("."):
        if not isinstance(here, Mapping):
            return None
        here = here.get(step)
    return here


def find(values: Mapping[str, Any], usual: Sequence[str], key: str | None = None, option: str = "") -> tuple[str, Any]:
    """The key that holds a value, and the value; ("", None) if there is none.

    Args:
        values: the record.
        usual: keys to look for.
        key: the only key to look for, if an option names one.
        option: that option, for messages; "" where there is no such option.

    Raises:
        ValueError: several of the usual keys hold a value.
    """
    names = _present(tuple(values), (key,) if key else tuple(usual))
    if not names:
        return "", None
    there = [(name, value) for name in names if (value := value_at(values, name)) is not None]
    if len(there) > 1:
        way_out = f"set data.{option} to the one to read" if option else "which mean the same; keep one"
        raise ValueError(f"has {there[0][0]!r} and {there[1][0]!r}{';' if option else ','} {way_out}")
    return there[0] if there else ("", None)


@lru_cache(maxsize=1024)
def _present(keys: tuple[Hashable, ...], usual: tuple[str, ...]) -> tuple[str, ...]:
    """The usual keys that a record may hold a value under: found once for all records of the same keys."""
    return tuple(name for name in usual if name in keys or ("." in name and name.partition(".")[0] in keys))


def text_of(value: Any, key: str, *, numbers: bool = False) -> str:
    """The value of a key as text; ``numbers`` are converted.

    Raises:
        ValueError: it is not text, or can't be encoded as UTF-8.
    """
    if numbers and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):  # what is missing in a table of pandas, for one
            raise ValueError(f"{key!r} is {value}, no number to compare with; remove it, or write text")
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is {shown(value)}; it must be text")
    if not value.isascii() and _SURROGATE.search(value):
        raise ValueError(f"{key!r} holds half of a surrogate pair, which is not a character")
    return value


def text_at(values: Mapping[str, Any], key: str) -> str | None:
    """The text under a key; None if there is none."""
    value = value_at(values, key)
    return None if value is None else text_of(value, key)


def number_of(value: Any, key: str) -> float:
    """The value of a key as a number.

    Raises:
        ValueError: it is none, or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key!r} is {shown(value)}; it must be a number")
    return float(value)


def extra_of(values: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Further keys of a record as a JSON object; "" where it has none of them. Bytes are left out.

    What JSON can't hold, a date for example, is kept as text.

    Raises:
        ValueError: a text is none that UTF-8 could hold.
    """
    given = ((key, value_at(values, key)) for key in keys)
    kept = {key: _without_bytes(value) for key, value in given if value is not None and not isinstance(value, bytes)}
    return text_of(_UNICODE.encode(kept), ", ".join(kept)) if kept else ""


@lru_cache(maxsize=1024)
def key_set(*keys: str | None) -> frozenset[str]:
    """The keys that are given, as a set that is made once for all records."""
    return frozenset(key for key in keys if key)


def record_of(values: Mapping[str, Any], without: Container[str]) -> str:
    """The keys of a record as a JSON object, as the user wrote them; "" where it has none. Bytes are left out.

    What JSON can't hold, a date for example, is kept as text.

    Args:
        values: the record.
        without: keys that are left out: media, and what a prompt has as it is.
    """
    given = ((key, value) for key, value in values.items() if value is not None and key not in without)
    kept = {str(key): _without_bytes(value) for key, value in given if not isinstance(value, bytes)}
    # ASCII: half of a surrogate pair is nothing that UTF-8 could hold
    return _ASCII.encode(kept) if kept else ""


def _without_bytes(value: Any) -> Any:
    """A value without encoded images and the like, which no JSON can hold."""
    if isinstance(value, Mapping):
        return {key: _without_bytes(one) for key, one in value.items() if not isinstance(one, bytes)}
    return [_without_bytes(one) for one in value if not isinstance(one, bytes)] if isinstance(value, list) else value


def listed(keys: Mapping[str, Any], option: str = "") -> str:
    """The keys of a record, for messages, and the option that chooses one."""
    return f"its keys are {', '.join(map(repr, keys)) or 'none'}" + (f"; {option} chooses one" if option else "")


def shown(value: Any) -> str:
    """A value, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


LIMITS = [
    *(("images_key", option) for option in ("min_pixels", "max_pixels")),
    *(("videos_key", option) for option in ("video_fps", "video_max_frames", "video_max_pixels")),
    ("media", "media_folder"),
]


def check_keys(prompts: Prompts, options: RecordOptions) -> None:
    """Refuse a key that an option names and not one training prompt has, and tell of limits of what none has.

    Each record is asked for its prompt by itself; data.extra_keys leave nothing out where they are missing.

    Raises:
        UserError: with every such key.
    """
    kinds = prompts.kinds
    there = {
        "images_key": any(one.images for one in kinds),
        "videos_key": any(one.videos for one in kinds),
        "audios_key": any(one.audios for one in kinds),
        "answer_key": any(one.answer is not None for one in kinds),
        "label_key": any(one.label is not None for one in kinds),
        "media": any(one.media or one.inputs for one in kinds),
    }
    absent = [(option, getattr(options, option, None)) for option, found in there.items() if not found]
    for key, option in LIMITS:
        if not there[key] and (limit := getattr(options, option, None)) is not None:
            log.warning("data.%s is %s, but no record of data.train_files has what it is about", option, limit)
    inputs = {*INPUTS, *(name for one in kinds for name, _ in one.inputs)}
    absent += [("input_keys", key) for key in getattr(options, "input_keys", ()) if key not in inputs]
    if complaints := [
        f"data.{option} is {key}, which none of the {len(prompts)} records of data.train_files has; correct it, or "
        "remove it"
        for option, key in absent
        if key is not None
    ]:
        raise ConfigError(complaints)


TEMPLATES = (".jinja", ".jinja2", ".txt")
CONTENT = "content"  # the variable that holds the question as the record has it


def templated(template: str | None, content: Any, values: Mapping[str, Any]) -> Any:
    """A question by a template; without one, as it is.

    Of chat messages, the text of the user's last one is replaced.

    Args:
        template: text of a template, or the path of a file of one.
        content: the question of the record, text or messages of role and content.
        values: of the record.

    Raises:
        ValueError: the template and the record don't fit together.
        UserError: there is something wrong with the template itself.
    """
    if template is None:
        return content
    if not isinstance(content, list):
        return _filled(template, content, values)
    said = (i for i, turn in enumerate(content) if isinstance(turn, Mapping) and turn.get("role") == "user")
    last = max(said, default=None)
    if last is None or not isinstance(content[last].get("content"), str):
        raise ValueError("has no message of the user in plain text, which data.template needs; leave data.template out")
    message = content[last] | {"content": _filled(template, content[last]["content"], values)}
    return [*content[:last], message, *content[last + 1 :]]


def check_template(template: str | None) -> None:
    """Refuse what is no template, or no file of one.

    Raises:
        UserError: it names what is wrong.
    """
    if template is not None:
        _compiled(template)


def _filled(template: str, content: Any, values: Mapping[str, Any]) -> str:
    compiled = _compiled(template)
    try:
        return str(compiled.render(dict(values) | {CONTENT: content}))
    except Exception as error:  # the code of a template may raise any
        raise ValueError(f"does not fit data.template: {error}; {listed(values)}") from None


@lru_cache
def _compiled(template: str) -> Any:
    from jinja2 import StrictUndefined, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    text = template
    if template.endswith(TEMPLATES) and "{" not in template:
        text = read_text(checked_path(template, "data.template"))
    sandbox = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=False)
    try:
        return sandbox.from_string(text)
    except TemplateSyntaxError as error:
        raise UserError(
            f"data.template is {Path(template).name if text is not template else template!r}, which is not a Jinja "
            f"template: {error.message} (line {error.lineno}); fix it"
        ) from None
