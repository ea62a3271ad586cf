"""Sends a folder to a repository of the Hugging Face hub.

huggingface_hub does the work, with its own token (HF_TOKEN, or that of ``hf auth login``): Burnish never writes
or shows it, and takes none on the command line. Its client drops the token where the hub redirects to another host.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from burnish.utils.errors import UserError, first_line
from burnish.utils.hub import is_repository


@dataclass(frozen=True)
class Repository:
    """A model's repository on the hub."""

    name: str  # org/name
    public: bool  # whether anyone may read it, if it is new

    @property
    def address(self) -> str:
        """Its page."""
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{self.name}"

    def prepare(self) -> bool:
        """Create it if it is not there; whether it is private.

        Raises:
            UserError: it can't be written to, or is public where that was not asked for.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.errors import RepositoryNotFoundError

        self._check()
        api = HfApi()
        with self._explained("created"):
            try:
                private = bool(api.model_info(self.name).private)
            except RepositoryNotFoundError:
                api.create_repo(self.name, private=not self.public)
                return not self.public
        if not private and not self.public:
            raise UserError(
                f"--to is {self.name}, which is there and public; add --public to push to it, or give another name"
            )
        return private

    def others(self, folder: Path) -> list[str]:
        """Files in the repository that a folder doesn't have: pushing leaves them there."""
        from huggingface_hub import HfApi

        with self._explained("read"):
            there = HfApi().list_repo_files(self.name)
        return sorted(name for name in there if name != ".gitattributes" and not (folder / name).is_file())

    def upload(self, folder: Path, message: str) -> str:
        """Send every file of a folder; the address of the commit.

        Raises:
            UserError: it broke off, or was refused.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.utils.tqdm import disable_progress_bars

        if not sys.stderr.isatty():
            disable_progress_bars()  # a log has no use for bars that are drawn over
        with self._explained("written to"):
            sent = HfApi().upload_folder(repo_id=self.name, folder_path=folder, commit_message=message)
        return str(sent.commit_url)

    def _check(self) -> None:
        """Refuse what can't work before anything is asked of a network."""
        from huggingface_hub import constants, get_token

        if constants.HF_HUB_OFFLINE:
            raise UserError(
                "HF_HUB_OFFLINE is set, so nothing can be sent to the hub; unset it, or write the folder with --dry-run"
            )
        if not get_token():
            raise UserError(
                "there is no token of the hub; run 'hf auth login' or set HF_TOKEN to a token that may write, or write "
                "the folder with --dry-run"
            )
        address = urlsplit(constants.ENDPOINT)
        if address.scheme != "https" and not _is_this_machine(address.hostname):
            raise UserError(
                f"HF_ENDPOINT is {constants.ENDPOINT}, to which the token would travel unencrypted; use https"
            )

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Errors of the hub as messages."""
        from huggingface_hub import errors

        client: type[Exception] = errors.HfHubHTTPError.__bases__[0]
        subject = f"--to is {self.name}, which can't be {what}"
        try:
            yield
        except errors.HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            if status == 401:
                why = "the hub does not accept your token; run 'hf auth login' or set HF_TOKEN to a valid one"
            elif status in (403, 404):
                owner = self.name.partition("/")[0]
                why = f"your token may not write there; give one that may write to {owner}, or another name"
            else:
                why = f"{first_line(error.__cause__ or error)}; run the same command again later"
            raise UserError(f"{subject}: {why}") from None
        except (OSError, RuntimeError, ValueError, client) as error:
            raise UserError(
                f"{subject}: {first_line(error.__cause__ or error)}; run the same command again, which sends what is "
                "missing"
            ) from None


def repository(name: str, *, public: bool) -> Repository:
    """The repository that an option names.

    Raises:
        UserError: it is no name of one.
    """
    if not is_repository(name) or len(name) > 96 or name.endswith((".git", ".ipynb")) or ".." in name or "--" in name:
        raise UserError(f"--to is {name!r:.120}, which is no name on the hub; give ORGANISATION/NAME or USER/NAME")
    return Repository(name, public)


def _is_this_machine(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
