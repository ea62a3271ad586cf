"""Python processes as forks of this one, which has imported everything: they start at once."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

STARTED = subprocess.Popen


class Forked:
    """What ``subprocess.Popen`` would start for ``python -c CODE ARGUMENTS``; libraries beside ``python`` are found."""

    def __init__(
        self, words: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int] = (), stdout: Any = None,
        stderr: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        if not Path(words[0]).is_file():
            raise FileNotFoundError(2, "No such file or directory", words[0])
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            become(words, pass_fds, env, (stdout, stderr))
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(self.pid, self.pid)

    def poll(self) -> int | None:
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode


def measured() -> None:
    """Have what this process runs count where coverage is measured, also if it is killed."""
    coverage = sys.modules.get("coverage")
    measuring = coverage and coverage.Coverage.current()

    def keep() -> None:
        while True:
            time.sleep(0.1)
            measuring.save()

    if measuring:
        threading.Thread(target=keep, daemon=True).start()


def become(words: Sequence[str], pass_fds: Sequence[int], env: Mapping[str, str], out: tuple[Any, Any]) -> NoReturn:
    """Run the code in this process, which is a fork, and end it."""
    import torch

    code = 1
    try:
        os.setpgid(0, 0)
        for number, stream in enumerate(out, 1):
            if stream is not None:
                os.dup2(1 if stream == subprocess.STDOUT else stream.fileno(), number)
        for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *pass_fds}:
            with contextlib.suppress(OSError):
                os.close(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
        os.environ.clear()
        os.environ.update(env)
        measured()
        torch.set_num_threads(1)  # threads of OpenMP did not come along
        sys.path[:0] = [*env.get("PYTHONPATH", "").split(os.pathsep), str(Path(words[0]).parent)]
        sys.argv = ["-c", *words[3:]]
        exec(compile(words[2], "-c", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@contextlib.contextmanager
def forked(chosen: Callable[[Sequence[str], Mapping[str, str]], bool]) -> Iterator[None]:
    """Have Python processes be forks, which are chosen by their words and their environment."""

    def start(words: Any, **more: Any) -> Any:
        is_one = more.get("pass_fds") and chosen(words, more.get("env") or {})
        return Forked(words, **more) if is_one else STARTED(words, **more)

    with patch("subprocess.Popen", start):
        yield
