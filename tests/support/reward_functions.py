"""Reward functions as users write them: the good, the bad and those that take the process with them."""

import os
import signal
import sys
import time
from pathlib import Path


def brightness(images, prompts, scale=1.0):
    return [scale * float(image.mean()) / 255 for image in images]


def fails_on_x(images, prompts):
    if any(prompt.text == "x" for prompt in prompts):
        raise ZeroDivisionError("x is not for me")
    return [1.0] * len(images)


def odd_values(images, prompts):
    return [float(p.text) if p.text in ("nan", "inf", "1e300") else {"dict": {}}.get(p.text) for p in prompts]


def one_too_few(images, prompts):
    return [1.0] * (len(images) - 1)


def paints_over(images, prompts):
    for image in images:
        image[:] = 0
    return [0.0] * len(images)


def has_torch(images, prompts):
    return [float("torch" in sys.modules)] * len(images)


def settings(images, prompts):
    """1 where a scoring process is what it should be."""
    quiet = (os.environ.get("OMP_NUM_THREADS"), os.environ.get("OMP_WAIT_POLICY")) == ("1", "PASSIVE")
    return [float(quiet and signal.getsignal(signal.SIGINT) == signal.SIG_IGN)] * len(images)


def process(images, prompts):
    return [float(os.getpid())] * len(images)


def _count(folder):
    """How often it was called with this folder, this time included."""
    calls = len(list(Path(folder).iterdir()))
    (Path(folder) / str(calls)).touch()
    return calls + 1


def dies_on_x(images, prompts, folder, times=1):
    if prompts[0].text == "x" and _count(folder) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return brightness(images, prompts)


def tells_and_hangs(images, prompts, file):
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)


not_a_function = 3


def letters(responses, prompts):
    """The fraction of letters: something that any model can learn to write more of."""
    return [sum(one.isalpha() for one in response.text) / max(len(response.text), 1) for response in responses]
