"""Clips and sounds as files that browsers play: mp4 by PyAV, animated WebP where it is missing, and WAV."""

from __future__ import annotations

import io
import wave
from fractions import Fraction
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from PIL import Image

QUALITY = "16"  # x264's rate factor: the difference can't be seen
WEBP_QUALITY = 90
AUDIO_RATE = 48000  # Hz of the sound of a clip
BLOCK = 1024  # samples of sound in a packet


def clip_format() -> Literal["mp4", "webp"]:
    """The format that clips are written in here."""
    return "mp4" if find_spec("av") is not None else "webp"


def encode_clip(
    frames: np.ndarray, fps: float, sound: tuple[np.ndarray, int] | None = None, *, quality: str = QUALITY
) -> bytes:
    """A file of frames in ``clip_format()``; equal frames give equal bytes on one machine.

    Args:
        frames: uint8 [F, H, W, 3].
        fps: frames per second.
        sound: float32 [channels, N] in [-1, 1] and its rate; WebP leaves it out.
        quality: x264's rate factor, smaller is better.
    """
    return _mp4(frames, fps, sound, quality) if clip_format() == "mp4" else _webp(frames, fps)


def encode_sound(samples: np.ndarray, rate: int) -> bytes:
    """A WAV file of 16 bits of a sound, float32 [channels, N] in [-1, 1]."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(len(samples))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.T.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
    return buffer.getvalue()


def _webp(frames: np.ndarray, fps: float) -> bytes:
    buffer = io.BytesIO()
    first, *others = map(Image.fromarray, frames)
    first.save(
        buffer, format="WEBP", save_all=True, append_images=others, duration=round(1000 / fps), loop=0,
        quality=WEBP_QUALITY, method=4,
    )  # fmt: skip
    return buffer.getvalue()


def _mp4(frames: np.ndarray, fps: float, sound: tuple[np.ndarray, int] | None, quality: str) -> bytes:
    import av

    buffer = io.BytesIO()
    # bitexact: without the versions of libraries
    with av.open(buffer, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        video = _video_stream(av, container, frames, fps, quality)
        if sound is not None:
            audio = container.add_stream("aac", rate=AUDIO_RATE, layout="mono" if len(sound[0]) == 1 else "stereo")
        height, width = frames.shape[1:3]  # the pixel format wants even ones: the last row and column are repeated
        even = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        for number, pixels in enumerate(even):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts, frame.time_base = number, video.codec_context.time_base
            container.mux(video.encode(frame))
        container.mux(video.encode())
        if sound is not None:
            for frame in _audio_frames(av, *sound):
                container.mux(audio.encode(frame))
            container.mux(audio.encode())
    return buffer.getvalue()


def _video_stream(av: Any, container: Any, frames: np.ndarray, fps: float, quality: str) -> Any:
    """H.264 where FFmpeg was built with it, else VP9, which browsers play too."""
    h264 = "libx264" in av.codecs_available
    rate = Fraction(fps).limit_denominator(1001)
    options = {"crf": quality, "preset": "medium"} if h264 else {"crf": quality, "b:v": "0"}
    stream = container.add_stream("libx264" if h264 else "libvpx-vp9", rate=rate, options=options)
    stream.height, stream.width = (side + side % 2 for side in frames.shape[1:3])
    stream.pix_fmt = "yuv420p"  # the only one that every browser plays
    stream.codec_context.thread_count = 1  # more threads may give other bytes
    stream.codec_context.time_base = 1 / rate
    return stream


def _audio_frames(av: Any, samples: np.ndarray, rate: int) -> Any:
    """The sound at the rate of its stream; of more than two channels, the first two."""
    channels = np.ascontiguousarray(samples[:2])
    layout = "mono" if len(channels) == 1 else "stereo"
    resampler = av.AudioResampler(format="fltp", layout=layout, rate=AUDIO_RATE, frame_size=BLOCK)
    frame = av.AudioFrame.from_ndarray(channels, format="fltp", layout=layout)
    frame.sample_rate, frame.pts = rate, 0
    yield from resampler.resample(frame)
    yield from resampler.resample(None)
