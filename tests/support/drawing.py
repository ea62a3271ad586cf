"""Images with text, as rewards get them."""

import struct
import zlib
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont


def font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), size)


def line(text: str, width: int = 32, height: int = 16) -> np.ndarray:
    """Black on white, filling a small image."""
    image = Image.new("RGB", (4 * width, 4 * height), "white")
    ImageDraw.Draw(image).text((2 * width, 2 * height), text, fill="black", font=font(3 * height), anchor="mm")
    return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS))


def scene(text: str) -> np.ndarray:
    """White on blue, somewhere in a large image."""
    image = Image.new("RGB", (320, 320), (60, 90, 160))
    ImageDraw.Draw(image).text((110, 220), text, fill="white", font=font(44))
    return np.asarray(image)


def noise(seed: int, width: int = 32, height: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def promised(width: int, height: int) -> bytes:
    """A PNG that says it has this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head, content = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), zlib.compress(b"0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", content) + chunk(b"IEND", b"")
