"""Hashes of the user's code that a run calls, to detect changes when it resumes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from burnish.config.plugins import chosen_by_path, portable
from burnish.config.run import RunConfig
from burnish.config.text import to_dict
from burnish.utils.user_code import code_of


def digests(config: RunConfig) -> dict[str, str]:
    """Hash of the file of each function and plugin by the option that names it; imports of it are not followed."""
    paths = {f"{caller} ({path})": path for caller, paths in config.user_code().items() for path in paths}
    paths |= {f"plugins ({Path(where).name})": where for where in config.plugins}
    for place, _, name in chosen_by_path(to_dict(config)):
        option = ".".join(place)
        paths[f"{option} ({portable(option, name)})"] = name
    found = {who: code_of(path) for who, path in paths.items()}
    return {who: hashlib.sha256(code).hexdigest()[:16] for who, code in found.items() if code is not None}
