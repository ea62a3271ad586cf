"""Opening pictures of strangers: no program is started for one, and deep colours become 8 bits, not white."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 2**26
DEEPEST = 2**16 - 1  # value of a picture of 16 bits


def check_pixels(width: int, height: int) -> None:
    """Refuse a picture that would take gigabytes of memory, by its header alone.

    Raises:
        OSError: it has too many pixels.
    """
    if width * height > MOST_PIXELS:
        raise OSError(f"it has {width} x {height} pixels, more than {MOST_PIXELS:,}; scale it down")


def open_picture(file: Any) -> Image:
    """``PIL.Image.open``, of all formats but PostScript: PIL has that drawn by Ghostscript, which runs it as a program.

    Raises:
        OSError: it is no picture, PostScript, or has too many pixels.
    """
    from PIL import Image

    opened = Image.open(file)
    if opened.format == "EPS":
        opened.close()
        raise OSError("it is PostScript, which is a program; save it as PNG")
    try:
        check_pixels(*opened.size)
    except OSError:
        opened.close()
        raise
    return opened


def of_array(values: Any) -> Image:
    """An array [H, W] or [H, W, colours] as a picture. Whole numbers up to 255 are of 8 bits, whatever their type.

    Raises:
        OSError, TypeError, ValueError: it is none.
    """
    import numpy as np
    from PIL.Image import fromarray

    values = np.asarray(values)
    if values.dtype.kind in "iu" and values.size and values.min() >= 0 and values.max() <= 255:
        values = values.astype(np.uint8)
    return as_shown(fromarray(values))


def of_frames(values: Any) -> Any:
    """A video as uint8 [T, H, W, 3], of whole numbers up to 255.

    Raises:
        ValueError: it is none.
    """
    import numpy as np

    values = np.asarray(values)
    right = values.ndim == 4 and values.shape[3] == 3 and values.size and values.dtype.kind in "iu"
    if not right or values.min() < 0 or values.max() > 255:
        raise ValueError(f"an array of {values.dtype} {list(values.shape)} is no video; give uint8 [T, H, W, 3]")
    return values.astype(np.uint8)


def as_shown(picture: Image) -> Image:
    """A picture that has pixels, in 8 bits per colour; see ``as_rgb``.

    Raises:
        OSError: it has none, or as ``as_rgb``.
    """
    if not picture.width or not picture.height:
        raise OSError(f"a picture of {picture.width} x {picture.height} pixels has nothing to show")
    return as_rgb(picture)


def as_rgb(picture: Image) -> Image:
    """A picture in 8 bits per colour. One of 16 bits keeps the upper 8, where PIL makes everything above 255 white.

    Raises:
        OSError: it holds fractions, or more than 16 bits, of which nobody knows what is white.
    """
    if picture.mode != "F" and not picture.mode.startswith("I"):
        return picture.convert("RGB")
    import numpy as np
    from PIL.Image import fromarray

    values = np.asarray(picture)
    if values.dtype.kind not in "iu" or values.min() < 0 or values.max() > DEEPEST:
        raise OSError("its values are not of 8 or 16 bits; save it with 8 bits per colour")
    return fromarray((values >> 8).astype(np.uint8)).convert("RGB")
