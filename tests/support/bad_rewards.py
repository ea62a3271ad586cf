"""Reward functions that can't work, each in its own way, for images and responses alike."""

import os
import sys


def raises(samples, prompts):
    raise ZeroDivisionError("not today")


class Mute(Exception):
    def __str__(self):
        raise ValueError("no")


def raises_the_unspeakable(samples, prompts):
    raise Mute


def one_for_all(samples, prompts):
    return [sum(len(prompt.text) for prompt in prompts)]


def leaves(samples, prompts):
    sys.exit(0)


def ends_its_process(samples, prompts):
    os._exit(0)


def takes_no_prompts(samples):
    return [1.0] * len(samples)


def gives_nan(samples, prompts):
    return [float("nan")] * len(samples)


def tires(samples, prompts, folder):
    """Works as often as it was tried before a run, and never again."""
    calls = len(os.listdir(folder))
    open(os.path.join(folder, str(calls)), "w").close()
    if calls:
        raise RuntimeError("tired")
    return [float(i) for i in range(len(samples))]
