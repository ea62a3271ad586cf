"""Pictures of every depth become RGB as they look, and none is run as a program."""

from __future__ import annotations

import io
import struct
import subprocess
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from burnish.data.decoding import check_media
from burnish.types.media import Media
from burnish.utils.errors import UserError
from burnish.utils.pictures import as_rgb, of_array, open_picture

RAMP = np.linspace(0, 2**16 - 1, 64).astype(np.uint16).reshape(8, 8)
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) (w) file\nshowpage\n%%EOF\n"


def encoded(picture: Image.Image, form: str) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format=form)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_a_picture_of_16_bits_keeps_its_greys(form):
    """PIL's own conversion makes everything above 255 white: of an X-ray nothing would be left."""
    media = Media.encoded(encoded(Image.fromarray(RAMP), form))
    media.decode()
    found = np.asarray(media.image())
    assert found.shape == (8, 8, 3)
    assert np.abs(found[..., 0].astype(int) - RAMP / 257).max() < 1


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_other_pictures_are_converted_as_pil_does(mode):
    picture = Image.fromarray((RAMP >> 8).astype(np.uint8)).convert("RGB").convert(mode)
    np.testing.assert_array_equal(as_rgb(picture), picture.convert("RGB"))


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3)], ids=str)
def test_an_array_of_8_bits_is_a_picture_in_whatever_type_it_comes(kind, shape):
    values = np.broadcast_to((RAMP >> 8).reshape(8, 8, *[1] * (len(shape) - 2)), shape)
    found = np.asarray(of_array(values.astype(kind)))
    np.testing.assert_array_equal(found, np.broadcast_to((RAMP >> 8)[..., None], (8, 8, 3)))


def test_a_picture_of_fractions_is_refused_as_nobody_knows_what_is_white():
    media = Media.encoded(encoded(Image.fromarray((RAMP / 2**16).astype(np.float32)), "TIFF"))
    with pytest.raises(UserError, match=r"(?s)x\.jsonl:1: has a picture .* save it with 8 bits per colour"):
        check_media([("x.jsonl:1", media)])


def test_postscript_is_refused_and_never_run(monkeypatch):
    def started(*given, **more):
        raise AssertionError("a program was started")

    monkeypatch.setattr(EpsImagePlugin, "gs_binary", "gs")
    monkeypatch.setattr(subprocess, "check_call", started)
    media = Media.encoded(POSTSCRIPT)
    for read in (media.check, media.size, media.outline, media.decode, media.image):
        with pytest.raises(OSError, match="save it as PNG"):
            read()


def test_a_picture_of_too_many_pixels_is_refused_by_its_header():
    header = struct.pack(">IIBBBBB", 13_000, 13_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    file = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    empty = b"IDAT" + zlib.compress(b"")
    file += struct.pack(">I", len(empty) - 4) + empty + struct.pack(">I", zlib.crc32(empty))
    file += struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    with pytest.raises(OSError, match="13000 x 13000 pixels"):
        open_picture(io.BytesIO(file))
    for look in ("outline", "decode", "image"):
        with pytest.raises(OSError, match="scale it down"):
            getattr(Media.encoded(file), look)()
