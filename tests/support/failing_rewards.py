"""Reward functions that fail for single prompts, in C as well, for responses and images alike."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path


def _each(prompts, do, value=len):
    found = []
    for prompt in prompts:
        if "bad" in prompt.text:
            do(prompt.text)
        found.append(value(prompt.text))
    return found


def hangs(samples, prompts, file, in_c=True):
    """For minutes; in C it holds the interpreter's lock as well."""
    Path(file).write_text(str(os.getpid()))
    return _each(prompts, lambda _: ctypes.PyDLL(None).sleep(600) if in_c else time.sleep(600))


def reads_nowhere(samples, prompts):
    return _each(prompts, lambda _: ctypes.string_at(0))


def raises_on_bad(samples, prompts):
    def fail(text):
        raise RuntimeError(f"no {text}")

    return _each(prompts, fail)


def recovers(samples, prompts, folder, times=1):
    """Fails for a bad prompt ``times`` times, counted over all processes."""

    def fail(text):
        tries = len(list(Path(folder).iterdir()))
        (Path(folder) / f"{tries}-{os.getpid()}-{time.monotonic_ns()}").touch()
        if tries < times:
            raise ConnectionError("not yet")

    return _each(prompts, fail)


def until(true, within=60.0) -> bool:
    """Wait until something is true, which it should be soon; whether it is."""
    end = time.monotonic() + within
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def forks(responses, prompts):
    """Lengths of prompts; its child comes back, as one does that forgets to end itself."""
    if not (child := os.fork()):
        return [-1.0] * len(responses)
    os.waitpid(child, 0)
    return [float(len(prompt.text)) for prompt in prompts]


def is_light_and_quiet(samples, prompts):
    """1 where a scoring process is what it should be."""
    threads = (os.environ.get("OMP_NUM_THREADS"), os.environ.get("OMP_WAIT_POLICY"))
    sound = "torch" not in sys.modules and threads == ("1", "PASSIVE")
    return [float(sound and signal.getsignal(signal.SIGINT) == signal.SIG_IGN)] * len(samples)
