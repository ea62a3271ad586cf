"""Does what pages say, from top to bottom, each in a folder of its name below the one that it is started in.

Blocks with a title are files, which are written; blocks of bash are typed line by line; blocks of text are what is seen
after the commands before them: each of their lines has to be there, in this order, and ``...`` stands for anything. A
command succeeds, unless a comment behind it says ``# exit code 2``. One process runs all that is Burnish, which imports
PyTorch once.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.shown import HOLLOW, Block, blocks, shell_lines

EXIT = re.compile(r"#.*\bexit code (\d+)")
SHELL = re.compile(r"[|&;<>$*`]")
Run = Callable[[str], int]


def follow(page: Path, run: Run) -> int:
    """Do what a page says, and return the number of commands.

    Raises:
        AssertionError: something is not as the page says; the message says where.
    """
    said, count = "", 0
    for block in blocks(page):
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text)
        elif block.kind == "bash":
            said = ""
            for line in shell_lines(block.text):
                said += typed(line, run, block.where)
                count += 1
        else:
            assert block.kind == "text", f"{block.where}: nobody can tell what to do with this block of {block.kind}"
            seen(block, said)
    return count


def typed(line: str, run: Run, where: str) -> str:
    """What a line says, on both outputs."""
    wanted = int(found[1]) if (found := EXIT.search(line)) else 0
    with recorded() as read:
        code = run(line)
    said = read()
    assert code == wanted, f"{where}: {line}\nexit code {code}, not {wanted}:\n{said}"
    defaults = line.startswith("burnish config")  # options may well be empty
    assert defaults or not HOLLOW.search(said), (
        f"{where}: {line}\nprints {HOLLOW.findall(said)} in the place of a value:\n{said}"
    )
    return said


def seen(block: Block, said: str) -> None:
    """Compare what a page says is seen with what was said."""
    rest = [" ".join(line.split()) for line in said.splitlines()]
    for line in block.text.splitlines():
        words = " ".join(line.split())
        if words in ("", "..."):
            continue
        pattern = ".*".join(re.escape(piece.strip()) for piece in words.split("..."))
        at = next((number for number, other in enumerate(rest) if re.fullmatch(pattern, other)), None)
        assert at is not None, f"{block.where}: {line!r} is not seen, or not in this order; what was said:\n{said}"
        rest = rest[at + 1 :]


@contextmanager
def recorded() -> Iterator[Callable[[], str]]:
    """Record what this process and its children write; what is returned reads it afterwards."""
    with tempfile.TemporaryFile("w+b") as file:
        sys.stdout.flush()
        sys.stderr.flush()
        before = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        said = ""

        def read() -> str:
            return said

        try:
            yield read
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, kept in enumerate(before, 1):
                os.dup2(kept, number)
                os.close(kept)
            file.seek(0)
            said = file.read().decode(errors="replace")


def by_shell(line: str) -> int:
    return subprocess.run(["bash", "-c", line], check=False, timeout=600).returncode


def here(line: str) -> int:
    """Run a line in this process, if it is of Burnish and nothing else."""
    program, *given = shlex.split(line, comments=True)
    if program != "burnish" or SHELL.search(re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", line)):
        return by_shell(line)
    from burnish.cli import main

    return main(given)
