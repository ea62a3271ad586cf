"""The licence of the model that a run began with, as that model's own card states it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.config.yaml_text import LARGEST, parse
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.hub import is_hub_id
from burnish.utils.paths import PREFIX, resolve
from burnish.utils.reading import read_file

CARD = "README.md"
_HEAD = re.compile(r"---\r?\n(.*?)\r?\n---", re.DOTALL)  # what a card says for programs
_NAME = re.compile(r"[A-Za-z0-9][\w.+ -]{0,99}")
_LINK = re.compile(r"https://[\w./%#~+-]{1,300}")
_FILE = re.compile(r"[\w./-]{1,100}")


@dataclass(frozen=True)
class Licence:
    """A licence as cards of the hub name it."""

    name: str  # an identifier of the hub's, such as apache-2.0; "other" of those that it doesn't know
    title: str | None = None  # of another one
    link: str | None = None

    @property
    def entries(self) -> dict[str, str]:
        """Lines of a card."""
        lines = {"license": self.name, "license_name": self.title, "license_link": self.link}
        return {name: value for name, value in lines.items() if value}


OURS = Licence("apache-2.0")  # of the models that ship with Burnish


def licence_of(path: str, revision: str | None, *, ask: bool) -> Licence | None:
    """The licence of a base model; None if its card doesn't say, or can't be had.

    Args:
        path: value of ``model.path``.
        revision: its commit, of a model of the hub.
        ask: whether the hub is asked where its card is not in the cache.
    """
    if path.startswith(PREFIX):
        return OURS
    if not is_hub_id(path):
        try:
            return _stated(resolve(path) / CARD)
        except UserError:
            return None
    import huggingface_hub

    cached = huggingface_hub.try_to_load_from_cache(path, CARD, revision=revision)
    if isinstance(cached, str):
        return _stated(Path(cached), path)
    return _of_hub(path, revision) if ask else None


def _of_hub(name: str, revision: str | None) -> Licence | None:
    import huggingface_hub

    client: type[Exception] = huggingface_hub.errors.HfHubHTTPError.__bases__[0]
    try:
        card = huggingface_hub.HfApi().model_info(name, revision=revision).card_data
    except (OSError, ValueError, client):  # removed since, or not for this account
        return None
    return read_licence({key: getattr(card, key, None) for key in ("license", "license_name", "license_link")}, name)


def _stated(card: Path, hub: str | None = None) -> Licence | None:
    if not card.is_file():
        return None
    try:
        head = _HEAD.match(read_file(card, LARGEST).decode(errors="replace"))
        return None if head is None else read_licence(parse(head[1]), hub)
    except (ConfigError, UserError):
        return None


def read_licence(content: Any, hub: str | None = None) -> Licence | None:
    """The licence that a card's head states, if it is one in plain words.

    Args:
        content: the head, parsed; of a card that somebody else wrote.
        hub: the model's name there, to which files are relative.
    """
    if not isinstance(content, dict):
        return None
    name, title, link = (content.get(key) for key in ("license", "license_name", "license_link"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    title = title if isinstance(title, str) and _NAME.fullmatch(title) else None
    if not isinstance(link, str):
        link = None
    elif not _LINK.fullmatch(link):
        link = f"https://huggingface.co/{hub}/blob/main/{link}" if hub and _FILE.fullmatch(link) else None
    return Licence(name, title, link)
