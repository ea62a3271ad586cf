"""One pass over a configuration: options that are set and never read, and what sections say is wrong with them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from burnish.config.yaml_text import show
from burnish.registry import MayChange, Named, ReadIf, fields
from burnish.rl.algorithm import Algorithm
from burnish.utils.addresses import SECRET_FLAG, SECRET_NAME, WORD, secret_in
from burnish.utils.json_text import flattened
from burnish.utils.user_code import names_code

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

Mark = tuple[ReadIf, str, Any]  # a mark, and the path and the section that it stands in


def problems(run: Any, given: Collection[str], section: Any = None, path: str = "") -> Iterator[str]:
    """Everything that is wrong with a configuration whose options are valid one by one.

    Args:
        run: the configuration; or that of a suite or a service, whose sections look at nothing that it lacks.
        given: dotted options of the command line. Where an option of the same section decides whether another is read,
            one that is not has to have its default; else it may be in a recipe, whose reader the command line may have
            switched off, but not on the command line.
        section: the only one to look at, None for all.
        path: of this section, with a dot behind it.
    """
    yield from _problems(run, run if section is None else section, path, given, ())


def may_change(run: RunConfig, option: str) -> bool:
    """Whether a dotted option, or a section that it is in, may differ when the run resumes."""
    section: Any = run
    for name in option.split("."):
        field = fields(section).get(name) if dataclasses.is_dataclass(section) else None
        if field is None or any(isinstance(mark, MayChange) for mark in field.metadata):
            return field is not None
        section = getattr(section, name)
    return False


def _problems(run: RunConfig, section: Any, path: str, given: Collection[str], above: Sequence[Mark]) -> Iterator[str]:
    if hasattr(section, "contradictions"):
        wrong = (message for is_wrong, message in section.contradictions(run) if is_wrong)
        # of a section that stands in several places the message begins with the option alone
        known = tuple(fields(section))
        yield from (f"{path if re.split('[ .]', one, maxsplit=1)[0] in known else ''}{one}" for one in wrong)
    for name, field in fields(section).items():
        value, option = getattr(section, name), f"{path}{name}"
        own = [(mark, path, section) for mark in field.metadata if isinstance(mark, ReadIf)]
        marks = own if any(not mark.option for mark, *_ in own) else [*above, *own]
        inner = dict(_sections(value, option))
        for place, leaf in flattened({option: value}) if isinstance(value, dict) and not inner else ():
            if isinstance(leaf, str) and not names_code(leaf):
                named = SECRET_NAME.search(place) and not (place.endswith("_token") and WORD.match(leaf))
                if held := secret_in(leaf) or "a secret" * bool(named or SECRET_FLAG.search(leaf)):
                    yield f"{place} holds {held}, which would be saved; set a variable of the environment in its place"
        for place, one in inner.items():
            yield from _problems(run, one, f"{place}.", given, marks)
        unread = next((one for one in marks if not _holds(one, run)), None)
        default = field.get_default(call_default_factory=True)
        if unread is None or value is None is default:
            continue
        mark, _, where = unread
        beside = not inner and where is section and isinstance(mark.option, str) and hasattr(section, mark.option)
        told = option in given or (not inner and any(one.startswith(f"{option}.") for one in given))
        if value != default if beside else told:
            yield _message(option, value, unread, run)


def _sections(value: Any, option: str) -> Iterator[tuple[str, Any]]:
    """The sections that an option holds: itself, or values of a list or by name."""
    if dataclasses.is_dataclass(value):
        yield option, value
    elif isinstance(value, list):
        yield from ((f"{option}[{i}]", one) for i, one in enumerate(value) if dataclasses.is_dataclass(one))
    elif isinstance(value, dict):
        yield from ((f"{option}.{name}", one) for name, one in value.items() if dataclasses.is_dataclass(one))


def _decides(mark: Mark, run: RunConfig) -> tuple[str, Any]:
    """Full name and value of the option that a mark is about."""
    condition, path, section = mark
    if not isinstance(condition.option, str):
        return "", condition.option(section, run)
    beside = hasattr(section, condition.option.partition(".")[0])
    value = attrgetter(condition.option)(section if beside else run)
    return f"{path if beside else ''}{condition.option}", value


def _holds(mark: Mark, run: RunConfig) -> bool:
    if not mark[0].option:
        return True
    _, value = _decides(mark, run)
    return value in mark[0].values if mark[0].values else bool(value)


def _message(option: str, value: Any, mark: Mark, run: RunConfig) -> str:
    word = "given" if isinstance(value, list | dict) or dataclasses.is_dataclass(value) else show(value)
    if mark[0].why:
        why = mark[0].why.format(run=run)
        return f"{option} is {word}, but {why}{', or' if ';' in why else ';'} remove it"
    deciding, current = _decides(mark, run)
    return f"{option} is {show(plain(value))}, which is never read when {deciding} is {show(current)}; remove it"


def plain(value: Any, *, full: bool = False) -> Any:
    """A value as YAML data; options inside lists and maps that have their default are left out, unless ``full``."""
    if isinstance(value, list | tuple):
        return [plain(item, full=full) for item in value]
    if isinstance(value, dict):
        return {name: plain(item, full=full) for name, item in value.items()}
    if not dataclasses.is_dataclass(value):
        return value
    chosen = {"name": value.name} if isinstance(value, Named | Algorithm) else {}
    return chosen | {
        name: plain(own, full=full)
        for name, field in fields(value).items()
        if (own := getattr(value, name)) != field.get_default(call_default_factory=True) or full or name == "name"
    }
