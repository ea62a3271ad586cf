"""Reward functions that fail for single samples, in C as well, for responses and pictures alike."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path


def text_of(sample, prompt) -> str:
    return getattr(sample, "text", prompt.text)


def _each(samples, prompts, do, value):
    found = []
    for sample, prompt in zip(samples, prompts, strict=True):
        text = text_of(sample, prompt)
        if "bad" in text:
            do(text)
        found.append(value(text))
    return found


def hangs_in_c(samples, prompts):
    """Holds the interpreter's lock for minutes."""
    return _each(samples, prompts, lambda _: ctypes.PyDLL(None).sleep(600), len)


def reads_nowhere(samples, prompts):
    return _each(samples, prompts, lambda _: ctypes.string_at(0), len)


def aborts(samples, prompts):
    return _each(samples, prompts, lambda _: os.abort(), len)


def raises_on_bad(samples, prompts):
    def fail(text):
        raise RuntimeError(f"no {text}")

    return _each(samples, prompts, fail, len)


def nan_on_bad(samples, prompts):
    return [float("nan") if "bad" in text_of(s, p) else 1.0 for s, p in zip(samples, prompts, strict=True)]


def one_too_few(samples, prompts):
    return [1.0] * (len(samples) - any("bad" in text_of(s, p) for s, p in zip(samples, prompts, strict=True)))


def recovers(samples, prompts, folder, times=1):
    """Fails for a bad sample ``times`` times, counted over all processes."""

    def fail(text):
        tries = len(list(Path(folder).iterdir()))
        (Path(folder) / f"{tries}-{os.getpid()}-{time.monotonic_ns()}").touch()
        if tries < times:
            raise ConnectionError("not yet")

    return _each(samples, prompts, fail, len)


def counts_itself(samples, prompts, folder, seconds=0.0, meeting=0):
    """Writes down when each sample was scored, from when to when; no score before ``meeting`` have begun."""
    found = []
    for sample, prompt in zip(samples, prompts, strict=True):
        begun = time.monotonic()
        file = Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}"
        file.touch()
        time.sleep(seconds)
        until(lambda: len(list(Path(folder).iterdir())) >= meeting)
        file.write_text(f"{begun} {time.monotonic()} {len(samples)} {text_of(sample, prompt)!r}")
        found.append(1.0)
    return found


def until(true, within=60.0) -> bool:
    """Wait until something is true, which it should be soon; whether it is."""
    end = time.monotonic() + within
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def spans(folder) -> list[tuple[float, float]]:
    """When samples were scored, of ``counts_itself``."""
    read = [file.read_text().split()[:2] for file in Path(folder).iterdir()]
    return sorted((float(begun), float(ended)) for begun, ended in read)


def most_at_once(some: list[tuple[float, float]]) -> int:
    """How many of these spans of time share a moment."""
    return max(sum(begun <= moment < ended for begun, ended in some) for moment, _ in some)


def forks(responses, prompts):
    """Lengths; its child comes back, as one does that forgets to end itself."""
    if not (child := os.fork()):
        return [-1.0] * len(responses)
    os.waitpid(child, 0)
    return [float(len(response.text)) for response in responses]
