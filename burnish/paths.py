"""Where files are: a path of the user, or ``burnish:NAME`` for one that ships with the package."""

from __future__ import annotations

from pathlib import Path

from burnish.errors import UserError

ASSETS = Path(__file__).parent / "assets"
PREFIX = "burnish:"


def resolve(path: str) -> Path:
    """The file or directory that ``path`` names.

    Raises:
        UserError: ``burnish:NAME`` names nothing that ships; the message lists what does.
    """
    if not path.startswith(PREFIX):
        return Path(path).expanduser()
    found = ASSETS / path.removeprefix(PREFIX)
    if not found.exists():
        known = ", ".join(f"{PREFIX}{item.name}" for item in sorted(ASSETS.iterdir()) if item.is_dir())
        raise UserError(f"{path} does not ship with Burnish; what does: {known}")
    return found
