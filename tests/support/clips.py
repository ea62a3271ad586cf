"""Clips and sounds for tests, and a reward function on them."""

from typing import Any

import numpy as np

from burnish.types.samples import Clip, Sound


def moving_square(frames: int = 6, *, size: int = 32, fps: float = 4.0, sound: bool = False, **changes: Any) -> Clip:
    """A dark square on white that moves from left to right, with a tone if wanted."""
    pixels = np.full((frames, size, size, 3), 255, np.uint8)
    for i in range(frames):
        left = round(i * (size * 3 // 4) / max(frames - 1, 1))
        pixels[i, size // 3 : size // 3 + size // 4, left : left + size // 4] = (30, 60, 200)
    return Clip(**{"frames": pixels, "fps": fps, "sound": tone(frames / fps) if sound else None} | changes)


def clip_file(frames: np.ndarray, fps: float = 8.0) -> bytes:
    from burnish.utils.video import encode_clip

    return encode_clip(frames, fps)


def tone(seconds: float = 1.0, *, rate: int = 8000, channels: int = 1, pitch: float = 440.0) -> Sound:
    """A sine that fades out."""
    time = np.arange(round(seconds * rate)) / rate
    wave = np.sin(2 * np.pi * pitch * time) * np.linspace(0.8, 0, len(time))
    return Sound.of(np.stack([wave] * channels), rate)


def brightness_of_clips(samples, prompts):
    """Mean of all pixels of clips, and their sounds', or of images."""
    return [
        float(sample.frames.mean() + (sample.sound.samples.mean() if sample.sound else 0))
        if isinstance(sample, Clip)
        else float(sample.mean())
        for sample in samples
    ]
