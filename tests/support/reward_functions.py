"""Reward functions as users write them: the good, the bad and those that take the process with them."""

import os


def brightness(images, prompts, scale=1.0):
    return [scale * float(image.mean()) / 255 for image in images]


def one_too_few(images, prompts):
    return [1.0] * (len(images) - 1)


def paints_over(images, prompts):
    for image in images:
        image[:] = 0
    return [0.0] * len(images)


def process(images, prompts):
    return [float(os.getpid())] * len(images)
