"""Addresses: of folders that fsspec opens (s3://bucket/folder, gs://, hdfs://, file:///path), and secrets in them."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")
CHAINED = re.compile(r"::|[?#]")
READ_ONLY = ("http", "https")  # to fsspec
SECRET = re.compile(
    r"key|token|secret|password|signature|credential|^(access|auth|code|jwt|pass|passwd|pwd|sig)$", re.IGNORECASE
)
SECRET_NAME = re.compile(  # of an option
    r"((access|api|private|secret)_?|\.)key$|(^|[._])(auth|jwt|pass|pwd|sig|token)$|passw(or)?d$|secret$|signature$"
    r"|credentials?$",
    re.IGNORECASE,
)
WORD = re.compile(r"(?=.{,15}$|.*[^\w.~+/=-])")  # a token of a text, as </s>, and none that opens a door
SECRET_FLAG = re.compile(r"--?[\w-]*(key|token|password|secret)[= ](?!\$)[\w.~+/=-]{6,}", re.IGNORECASE)  # in a command
LOST = ("memory", "data", "cached", "simplecache", "filecache", "blockcache")  # with the process


def is_address(text: str) -> bool:
    """Whether a text is an address, and not a path of this machine or a name on the hub."""
    return PROTOCOL.match(text) is not None


def secret_in(address: str) -> str:
    """What an address contains that must not be saved, such as key=..., without its value; "" if nothing."""
    try:
        parts = urlsplit(address)
    except ValueError:  # a bracket that is not closed
        return "a user name or password" if "@" in address else ""
    if "@" in parts.netloc:
        return "a user name or password"
    pairs = [pair.partition("=") for pair in re.split("[&;]", f"{parts.query}&{parts.fragment}")]
    return next((f"{unquote(name)}=..." for name, _, value in pairs if value and SECRET.search(unquote(name))), "")


def address_complaint(address: str) -> str:
    """Why nothing can be kept at an address, as the end of a sentence; "" if it may be possible."""
    found = PROTOCOL.match(address)
    if found is None:
        return "which is not an address; give one such as s3://BUCKET/FOLDER, or file:///FOLDER for another disk"
    if CHAINED.search(address):
        return "which is not a plain address of a folder: leave out ::, ? and #"
    try:
        parts = urlsplit(address)
    except ValueError as error:
        return f"which is not an address: {error}"
    if "@" in parts.netloc:
        return "which holds a user name or a password, which would be saved; set variables of the environment"
    if found[0].lower() in (*READ_ONLY, *LOST):
        return f"but nothing can be kept at {found[0]}:// addresses; give s3://, gs://, hdfs:// or file://"
    if not parts.path.strip("/") and found[0].lower() in ("file", "local"):
        return "which names no folder"
    return ""


def library_complaint(address: str) -> str:
    """What fsspec lacks for an address, as the end of a sentence; "" if nothing. It imports the library."""
    from fsspec import get_filesystem_class

    protocol = address.partition("://")[0]
    try:
        get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        return f"which can't be opened: {' '.join(str(error).split())}"
    return ""


VARIABLE = re.compile(r"KEY|TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIAL", re.IGNORECASE)  # in names of variables
SHORTEST = 6  # characters of a secret; anything shorter is in every message by chance
IN_ADDRESS = re.compile(r"://[^/\s@]+@")
IN_QUERY = re.compile(r"(?<=[?&;#])([^=&;\s]+)=[^&;\s]+")
HIDDEN = "***"


def redacted(text: str) -> str:
    """Text without values of secret environment variables, and without names, passwords and tokens in addresses."""
    found = {value for name, value in os.environ.items() if VARIABLE.search(name) and len(value) >= SHORTEST}
    for value in sorted(found, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return IN_QUERY.sub(
        lambda pair: f"{pair[1]}={HIDDEN}" if SECRET.search(unquote(pair[1])) else pair[0],
        IN_ADDRESS.sub(f"://{HIDDEN}@", text),
    )


def one_line(error: BaseException) -> str:
    """An error on one line, without secrets."""
    return redacted(" ".join(f"{type(error).__name__}: {error}".split()))[:500]
