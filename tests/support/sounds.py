"""Sounds as files, for tests."""

import io

import av
import numpy as np

CODECS = {"wav": "pcm_s16le", "flac": "flac", "mp3": "libmp3lame", "ogg": "libopus"}


def tone(seconds: float = 0.5, rate: int = 16000, pitch: float = 440.0) -> np.ndarray:
    """A sine float32 [N]."""
    return (0.5 * np.sin(2 * np.pi * pitch * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def sound_file(kind: str, samples: np.ndarray, rate: int = 16000, channels: int = 1) -> bytes:
    """Samples [N] as a file of a kind, equal in all channels."""
    buffer = io.BytesIO()
    layout = {1: "mono", 2: "stereo"}[channels]
    with av.open(buffer, "w", format=kind) as container:
        stream = container.add_stream(CODECS[kind], rate=rate)
        stream.layout = layout
        form = stream.codec_context.format.name
        resampler = av.AudioResampler(format=form, layout=layout, rate=rate, frame_size=stream.frame_size or 1024)
        frame = av.AudioFrame.from_ndarray(np.tile(samples, (channels, 1)), format="fltp", layout=layout)
        frame.sample_rate, frame.pts = rate, 0
        for part in [*resampler.resample(frame), *resampler.resample(None), None]:
            container.mux(stream.encode(part))
    return buffer.getvalue()
