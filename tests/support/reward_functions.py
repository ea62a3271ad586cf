"""Reward functions as users write them: the good, the bad and those that take the process with them."""


def brightness(images, prompts, scale=1.0):
    return [scale * float(image.mean()) / 255 for image in images]


def paints_over(images, prompts):
    for image in images:
        image[:] = 0
    return [0.0] * len(images)
