"""Data sets of the Hugging Face hub: ``org/name@split`` is downloaded into the cache of the datasets library.

The library does the work: it finds the files of a split, converts them once, and runs no code of the hub's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from burnish.utils.errors import UserError, first_line

# a split, of which a part may be named as the datasets library does: train[:950], train[10%:]
_SET = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*)(?::([\w.-]+))?@([\w.-]+(?:\[(?:\d+%?)?:(?:\d+%?)?\])?)")


@dataclass(frozen=True)
class HubData:
    """A split of a data set of the hub."""

    name: str
    subset: str | None  # what the hub calls a configuration, for sets that have several
    split: str

    @property
    def path(self) -> str:
        """As options name it."""
        return f"{self.name}{f':{self.subset}' if self.subset else ''}@{self.split}"

    def check(self) -> None:
        """Refuse it where the datasets library isn't installed; nothing is asked of a network.

        Raises:
            UserError: with the way to install it.
        """
        if find_spec("datasets") is None:
            raise UserError(f"{self.path} is a data set of the hub, which needs datasets: pip install 'burnish[data]'")

    def load(self) -> Any:
        """The rows, as the datasets library holds them; what its cache lacks is downloaded.

        Raises:
            UserError: it can't be had; the message says what to do.
        """
        self.check()
        import datasets

        with self._explained():
            return datasets.load_dataset(self.name, self.subset, split=self.split)

    def download(self, patterns: list[str]) -> Path:
        """Files of the set by patterns of their names, as they are: the folder that they are in.

        Raises:
            UserError: they can't be had; the message says what to do.
        """
        self.check()
        from huggingface_hub import snapshot_download

        with self._explained():
            return Path(snapshot_download(self.name, repo_type="dataset", allow_patterns=patterns))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of the library as messages."""
        from datasets import exceptions
        from huggingface_hub import constants, errors

        client: type[Exception] = errors.HfHubHTTPError.__bases__[0]
        fetch = f"hf download {self.name} --repo-type dataset --local-dir DIR"
        try:
            yield
        except exceptions.DatasetNotFoundError:
            away = " or the hub can't be reached" if constants.is_offline_mode() else ""
            raise UserError(
                f"{self.path} names a data set that the hub doesn't have, or that you may not read{away}; check its "
                f"name, set HF_TOKEN to a token that may read it, or fetch it elsewhere with: {fetch}, and give its "
                "files"
            ) from None
        except (exceptions.DatasetsError, ValueError, KeyError) as error:
            raise UserError(f"{self.path} can't be read: {first_line(error):.300}; give a split that it has") from None
        except (OSError, client) as error:
            raise UserError(
                f"{self.path} is not in the cache, and can't be downloaded: {first_line(error):.300}; where the hub "
                f"can be reached, run: {fetch}, and give its files"
            ) from None


def hub_data(path: str) -> HubData | None:
    """The data set of the hub that an option names as ``org/name@split`` or ``org/name:subset@split``, if it does.

    Of a split, a part may be named: ``org/name@train[:950]``.
    """
    found = _SET.fullmatch(path)
    return None if found is None else HubData(found[1], found[2], found[3])
