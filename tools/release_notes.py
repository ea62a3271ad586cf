"""Prints the notes of a release: the section of CHANGELOG.md about this version.

    python tools/release_notes.py                # of the version that burnish/__init__.py names
    python tools/release_notes.py --tag v1.2.3   # the same, if the tag is that version

The exit status is 1, with the reason, where the tag is another version's, or where the section is missing, empty or
without the date of the release. Nothing but Python's own library is needed.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
DATED = re.compile(r"(\d+\.\d+\.\d+\S*) - (\d{4}-\d{2}-\d{2})")


class Refused(Exception):
    """Why there are no notes."""


def sections(changelog: str) -> dict[str, str]:
    """What stands below each heading of the second level, by heading, in order."""
    _, *parts = HEADING.split(changelog)
    return {heading.strip(): text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def version_of(source: str) -> str:
    """The version that a module's source assigns."""
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if found is None:
        raise Refused("burnish/__init__.py assigns no __version__")
    return found[1]


def notes(changelog: str, version: str) -> str:
    """The section of a version that is released."""
    for heading, text in sections(changelog).items():
        dated = DATED.fullmatch(heading)
        if dated is not None and dated[1] == version:
            if not text:
                raise Refused(f"the section {heading!r} of CHANGELOG.md is empty")
            return text
    raise Refused(f"CHANGELOG.md has no section '## {version} - YYYY-MM-DD'; name the one about it so, with the day")


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="of the release: v and the version")
    tag = parser.parse_args().tag
    try:
        version = version_of((ROOT / "burnish" / "__init__.py").read_text(encoding="utf-8"))
        if tag is not None and tag != f"v{version}":
            raise Refused(f"the tag is {tag}, and the version of burnish/__init__.py is {version}; tag v{version}")
        print(notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version))
    except Refused as why:
        print(f"no release notes: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
