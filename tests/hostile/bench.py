"""Where hostile inputs are tried: each in a fork of one process that has imported everything, and then looked after."""

import contextlib
import ctypes
import hashlib
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

LINES = 10  # of a message
LONGEST = 4000  # characters of a message
PATIENCE = 100.0  # seconds by the clock until a try counts as hanging
GRACE = 5.0  # seconds in which processes that a command started notice that it is gone
MEMORY = 12 << 30  # bytes of addresses that a try may use
ADOPT = 36  # prctl's PR_SET_CHILD_SUBREAPER: orphans of a try become children of this process
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Expect = Literal["refused", "works", "either"]
STOLEN = "stolen"  # file that code of a stranger writes to the scratch folder where it is run


@dataclass(frozen=True)
class Place:
    """Models, data, recipes and finished runs that nothing is wrong with; every try damages copies of its own."""

    folder: Path

    def recipe(self, task: str) -> Path:
        """Of a step: of a generator ("drawing") or of a vision-language model ("seeing")."""
        return self.folder / f"{task}.yaml"

    def run(self, task: str) -> Path:
        """A finished run of that recipe, two updates long."""
        return self.folder / "runs" / task


@dataclass(frozen=True, kw_only=True)
class Case:
    """One hostile input.

    ``make`` prepares a scratch folder, which is the current one of the try, and returns the command line.
    ``refused``: exit code 2, one message of at most ten lines that names ``words``. ``works``: exit
    code 0. ``either``: one of both, as for a flipped bit, which may do no harm.
    """

    kind: str
    name: str
    make: Callable[[Place, Path], list[str]]
    expect: Expect = "refused"
    words: tuple[str, ...] = ()  # of which a refusal has all, whatever their case
    environment: tuple[tuple[str, str], ...] = ()
    changes: tuple[str, ...] = ()  # beginnings of paths in the scratch folder that the command is there to change

    @property
    def id(self) -> str:
        return f"{self.kind}: {self.name}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a try; ``bad`` is empty where it was answered well."""

    case: Case
    bad: str
    said: str


class Bench:
    """A place with finished runs, and what is needed to try cases in it one after another."""

    def __init__(self, folder: Path) -> None:
        from tests.hostile.place import build

        assert ctypes.CDLL(None, use_errno=True).prctl(ADOPT, 1, 0, 0, 0) == 0
        self.folder = folder
        self.place = build(folder / "place")
        self._import_everything()
        for task in ("drawing", "seeing"):
            recipe, target = str(self.place.recipe(task)), self.place.run(task)
            code, said = self._run(["train", recipe, "steps=2", f"output_dir={target}"], self.folder, {})
            assert code == 0, said
        self._whole = _contents(self.place.folder)

    def attempt(self, case: Case) -> Outcome:
        scratch = self.folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            arguments = case.make(self.place, scratch)
            before = _contents(scratch)
            code, said = self._run(arguments, scratch, dict(case.environment))
            now = _contents(self.place.folder)
            changed = _changed(before, _contents(scratch), case.changes) + _changed(self._whole, now, ())
            complaints = {
                judge(case, code, said): True, "ran code of what it was given": (scratch / STOLEN).exists(),
                f"changed {', '.join(changed[:3])}": changed, "left a process behind": self._leftover(),
            }  # fmt: skip
            return Outcome(
                case=case, bad="; ".join(why for why, holds in complaints.items() if why and holds), said=said
            )
        finally:
            for path in scratch.rglob("*"):
                if path.is_dir() and not path.is_symlink():
                    path.chmod(0o700)
            shutil.rmtree(scratch, ignore_errors=True)

    def _run(self, arguments: Sequence[str], scratch: Path, environment: dict[str, str]) -> tuple[int | None, str]:
        """Exit code (None where it hung), and what was said on both streams."""
        out = self.folder / "said"
        out.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            _become(arguments, scratch, out, environment)
        start, code = time.monotonic(), None
        while code is None and time.monotonic() - start < PATIENCE:
            done, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0.005)
        if code is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return code, out.read_text(errors="replace") if out.exists() else ""

    def _leftover(self) -> bool:
        """Whether a process of a try is still there after a while; it is ended."""
        deadline = time.monotonic() + GRACE
        while _children():
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if time.monotonic() > deadline:
                for process in _children():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(process, 0)
                return True
            time.sleep(0.02)
        return False

    def _import_everything(self) -> None:
        """Have forks start at once: models import what they are made of when they are loaded."""
        import warnings

        from burnish import load
        from burnish.tasks import assemble

        warnings.simplefilter("ignore")
        for task in ("drawing", "seeing"):
            assembly = assemble(load(str(self.place.recipe(task)), "model.lora.rank=2"))
            assembly.check_data()
            assembly.check()


def judge(case: Case, code: int | None, said: str) -> str:
    """What is bad about an answer; empty where nothing is."""
    if code is None:
        return f"still ran after {PATIENCE:g} seconds"
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    if "Traceback" in said:
        return f"ended in a traceback: {said.strip().splitlines()[-1][:200]}"
    if CONTROL.search(said):
        return "wrote control characters to the terminal"
    if code not in {"refused": (2,), "works": (0,), "either": (0, 2)}[case.expect]:
        return f"ended with exit code {code}"
    return _refusal(case, said) if code == 2 else ""


def _refusal(case: Case, said: str) -> str:
    at = said.find("burnish: error:")
    if at < 0:
        return "was refused without a message"
    message = said[at:].strip()
    if message.count("\n") >= LINES:
        return f"has a message of {message.count(chr(10)) + 1} lines"
    if len(message) > LONGEST:
        return f"has a message of {len(message)} characters"
    missing = [word for word in case.words if word.lower() not in message.lower()]
    if missing:
        return f"does not name {', '.join(missing)}"
    return ""


def _become(arguments: Sequence[str], scratch: Path, out: Path, environment: dict[str, str]) -> NoReturn:
    """The command, in this process."""
    import atexit

    code = 1
    try:
        os.setpgid(0, 0)
        with out.open("wb") as file, open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        os.chdir(scratch)
        os.environ.update({"COLUMNS": "100"} | environment)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        encoding = environment.get("PYTHONIOENCODING", "utf-8")
        sys.stdout = os.fdopen(1, "w", encoding=encoding, errors="strict", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)
        code = _command(arguments)
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stderr.flush()
        os._exit(code)


def _command(arguments: Sequence[str]) -> int:
    from burnish.cli import main

    sys.argv = ["burnish", *arguments]  # as the program itself, which ignores signals once it is at its end
    try:
        return main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _children() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def _contents(folder: Path) -> dict[str, str]:
    """Every file in a folder with a digest of what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"to {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    return found


def _changed(before: dict[str, str], after: dict[str, str], free: tuple[str, ...]) -> list[str]:
    """What was there and is gone or different, apart from what may be."""
    return [
        name for name, content in before.items()
        if after.get(name) != content and not name.startswith(free or ("\0",)) and not name.endswith(".claim")
    ]  # fmt: skip
