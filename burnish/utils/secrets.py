"""Messages of libraries without what must not be seen."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

SECRET = re.compile(r"KEY|TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIAL", re.IGNORECASE)  # in names of variables
SHORTEST = 6  # characters of a secret; anything shorter is in every message by chance
IN_ADDRESS = re.compile(r"://[^/\s@]+@")
IN_QUERY = re.compile(r"([?&]\w*(?:token|key|secret)=)[^&\s]+", re.IGNORECASE)
HIDDEN = "***"


def redacted(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Text without values of secret environment variables, and without names, passwords and tokens in addresses."""
    found = {value for name, value in environment.items() if SECRET.search(name) and len(value) >= SHORTEST}
    for value in sorted(found, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return IN_QUERY.sub(rf"\1{HIDDEN}", IN_ADDRESS.sub(f"://{HIDDEN}@", text))
