"""Records golden runs anew, and prints what moved.

python -m tests.golden                    # all of them
python -m tests.golden 'language/grpo*'   # some, by patterns of HALF/NAME
"""

import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from fnmatch import fnmatch
from io import StringIO
from pathlib import Path

import torch

from tests.golden.recorded import moved, record_of, recorded, write
from tests.golden.runs import HALVES, train
from tests.support.tiny_run import write_files

SHOWN = 5  # metrics of a run


def main(patterns: list[str]) -> int:
    """Train the runs that any pattern names; those that no table names any more leave the file."""
    torch.set_num_threads(1)
    known = recorded()
    records = {(half, name): known.get((half, name)) for half, runs in HALVES.items() for name in runs}
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for half, name in records:
            if not any(fnmatch(f"{half}/{name}", pattern) for pattern in patterns):
                continue
            told = StringIO()
            try:
                with redirect_stdout(told), redirect_stderr(told):
                    found = train(Path(folder), half, name)
            except AssertionError:
                print(f"{half}/{name} failed\n{told.getvalue()}")
                return 1
            before, after = records[half, name], record_of(half, name, found)
            records[half, name] = after
            _show(f"{half}/{name}", before, after)
    write({key: record for key, record in records.items() if record is not None})
    return 0


def _show(name: str, before: dict[str, object] | None, after: dict[str, object]) -> None:
    if before is None:
        print(f"{name}: new", flush=True)
    elif before["digest"] == after["digest"]:
        print(f"{name}: the same", flush=True)
    else:
        differences = list(moved(before, after)) or ["beyond the digits that are kept, or weights alone"]
        print("\n  ".join([f"{name}: {len(differences)} moved", *differences[:SHOWN]]), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["*"]))
