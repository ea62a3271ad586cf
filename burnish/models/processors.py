"""Processors of transformers where torchvision is not installed: its functions, on tensors alone.

Their numbers are torchvision's: both leave the work to ``torch.nn.functional.interpolate`` and ``pad``."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NATIVE = ("AVX2", "AVX512")  # CPUs on which torch resizes bytes linearly without a detour through floats
# modules of transformers that choose classes by whether torchvision is installed: they must hear the truth
ASKING = tuple(f"transformers.models.auto.{name}_processing_auto" for name in ("image", "video"))
_LOCK = threading.RLock()


class InterpolationMode(Enum):
    """How pixels between pixels are computed, by the names of ``interpolate``."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


BY_NUMBER = ("NEAREST", "LANCZOS", "BILINEAR", "BICUBIC", "BOX", "HAMMING")  # as PIL numbers them
SMOOTH = (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.LANCZOS)


def resize(
    image: Tensor,
    size: Sequence[int],
    interpolation: InterpolationMode | int = InterpolationMode.BILINEAR,
    max_size: None = None,
    antialias: bool = True,
) -> Tensor:
    """An image [..., C, H, W] at another height and width.

    Args:
        image: of any type.
        size: height and width.
        interpolation: how, by its name or by PIL's number.
        max_size: no processor gives it.
        antialias: of the smooth ways.
    """
    height, width = size
    if (height, width) == tuple(image.shape[-2:]):
        return image
    way = InterpolationMode[BY_NUMBER[interpolation]] if isinstance(interpolation, int) else interpolation
    smooth = way in SMOOTH
    # whether torch resizes bytes as bytes
    native = way is not InterpolationMode.BILINEAR or torch.backends.cpu.get_cpu_capability() in NATIVE
    flat = image.reshape(-1, *image.shape[-3:])
    cast = not image.is_floating_point() and not (image.dtype == torch.uint8 and native)
    resized = F.interpolate(
        flat.float() if cast else flat,
        size=[height, width],
        mode=way.value,
        align_corners=False if smooth else None,
        antialias=antialias and smooth,
    )
    resized = resized.round().to(image.dtype) if cast else resized
    return resized.reshape(*image.shape[:-2], height, width)


def pad(
    image: Tensor, padding: Sequence[int], fill: float | Sequence[float] = 0, padding_mode: str = "constant"
) -> Tensor:
    """An image [..., C, H, W] with borders.

    Args:
        image: of any type.
        padding: pixels on the left, on top, on the right and below.
        fill: their colour, one number or one a channel.
        padding_mode: no processor of transformers gives another.
    """
    if padding_mode != "constant":
        raise ImportError(f"borders of an image that are {padding_mode} need torchvision: pip install torchvision")
    left, top, right, bottom = padding
    height, width = image.shape[-2:]
    colour = torch.as_tensor(fill, dtype=image.dtype).view(-1, 1, 1)
    padded = colour.expand(*image.shape[:-2], top + height + bottom, left + width + right).clone()
    padded[..., top : top + height, left : left + width] = image
    return padded


def crop(image: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """A rectangle inside an image [..., C, H, W]."""
    return image[..., top : top + height, left : left + width]


def normalize(image: Tensor, mean: Any, std: Any, inplace: bool = False) -> Tensor:
    """(image - mean) / std for each channel of [..., C, H, W]."""
    mean, std = (torch.as_tensor(one, dtype=image.dtype, device=image.device) for one in (mean, std))
    mean, std = (one.view(-1, 1, 1) if one.ndim == 1 else one for one in (mean, std))
    return (image.sub_(mean) if inplace else image.sub(mean)).div_(std)


def grayscale_to_rgb(image: Tensor) -> Tensor:
    """An image as it is: those that Burnish hands to processors have three channels."""
    return image


def pil_to_tensor(image: Any) -> Tensor:
    """Bytes [C, H, W] of an image of PIL with several channels."""
    import numpy as np

    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def to_pil_image(image: Tensor) -> Any:
    """An image of PIL of bytes [C, H, W] in several channels."""
    from PIL import Image

    return Image.fromarray(image.permute(1, 2, 0).cpu().numpy())


FUNCTIONS = (
    InterpolationMode, resize, pad, crop, normalize, grayscale_to_rgb, pil_to_tensor, to_pil_image,
)  # fmt: skip


def import_without_torchvision(name: str) -> ModuleType:
    """A module of transformers that wants torchvision, with the functions above in its place.

    Nothing named torchvision stays behind: whoever asks whether it is installed is told that it isn't.

    Args:
        name: such as transformers.models.qwen2_vl.video_processing_qwen2_vl.
    """
    with _LOCK:
        _supply()
        with _standing_in(), _said_to_be_there():
            assert name.startswith("transformers."), f"{name} is not a module of transformers"
            module = importlib.import_module(name)
        for base in _transformers_modules(module):
            _give(base)
    return module


def _supply() -> None:
    """Give transformers' own base modules what they would have imported."""
    for name in ASKING:
        importlib.import_module(name)
    from transformers import image_processing_backends, image_utils
    from transformers.image_utils import PILImageResampling

    if image_processing_backends.pil_torch_interpolation_mapping is not None:
        return
    names = InterpolationMode.__members__
    known = {way: InterpolationMode[way.name] for way in PILImageResampling if way.name in names}
    known[PILImageResampling.NEAREST] = InterpolationMode.NEAREST_EXACT
    modules: tuple[Any, ...] = (image_utils, image_processing_backends)
    for module in modules:
        module.pil_torch_interpolation_mapping = known
        module.torch_pil_interpolation_mapping = {torch_way: way for way, torch_way in known.items()}
    modules[1].is_torchvision_greater_or_equal = lambda version: _has_lanczos()
    for name in ("image_processing_utils", "image_processing_backends", "video_processing_utils"):
        _give(importlib.import_module(f"transformers.{name}"))


def _has_lanczos() -> bool:
    """Whether this torch resizes so; transformers asks for the torchvision that came with it."""
    try:
        F.interpolate(torch.zeros(1, 1, 2, 2), size=[1, 1], mode="lanczos", align_corners=False, antialias=True)
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def _transformers_modules(module: ModuleType) -> Iterator[ModuleType]:
    """A module, and those of the classes that its classes are built on."""
    for one in list(vars(module).values()):
        if isinstance(one, type):
            yield from (
                sys.modules[base.__module__] for base in one.__mro__ if base.__module__.startswith("transformers.")
            )
    yield module


def _give(module: Any) -> None:
    """The functions under the names that transformers' modules use."""
    if not hasattr(module, "tvF"):
        module.tvF = _functional()


def _functional() -> ModuleType:
    found = ModuleType("torchvision.transforms.v2.functional")
    vars(found).update({function.__name__: function for function in FUNCTIONS}, __getattr__=_missing)
    return found


def _missing(name: str) -> Any:
    if name.startswith("__"):  # asked of every module
        raise AttributeError(name)
    raise ImportError(f"it calls torchvision's {name}, which is not installed; run: pip install torchvision")


@contextmanager
def _said_to_be_there() -> Iterator[None]:
    """Modules that import torchvision only where it is said to be installed."""
    import transformers.utils
    from transformers.utils import import_utils

    places: tuple[Any, ...] = (transformers.utils, import_utils)
    names = ("is_torchvision_available", "is_torchvision_v2_available")
    before = [(place, name, getattr(place, name)) for place in places for name in names]
    for place, name, _ in before:
        setattr(place, name, lambda: True)
    try:
        yield
    finally:
        for place, name, function in before:
            setattr(place, name, function)


@contextmanager
def _standing_in() -> Iterator[None]:
    """Modules named torchvision while a module of transformers is imported, which asks for them by name."""
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
    modules = {name: ModuleType(name) for name in names}
    modules |= {f"{name}.functional": _functional() for name in names[1:]}
    for name, module in modules.items():
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    modules["torchvision.transforms"].InterpolationMode = InterpolationMode  # type: ignore[attr-defined]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)


VIDEOS = "video_processor"  # the attribute that transformers can't make without torchvision


def class_without_videos(named: str) -> Any:
    """A processor's class, but it takes images and text alone.

    It has the name and the module of the original, so that what saves it writes those.

    Args:
        named: class in transformers, such as Qwen2VLProcessor.
    """
    import transformers

    base: Any = getattr(transformers, named)

    def __init__(self: Any, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
        self.video_processor = None
        base.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    return type(named, (base,), {"__init__": __init__, "__module__": base.__module__, "__qualname__": named})


def processors_without_torchvision(path: Path, index: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a pipeline that could not be loaded without torchvision, for ``from_pretrained``.

    Args:
        path: folder of the pipeline.
        index: its model_index.json.

    Returns:
        By the name of the part; empty where torchvision is installed.
    """
    if find_spec("torchvision") is not None:
        return {}
    import transformers

    found: dict[str, Any] = {}
    for name, value in index.items():
        library, named = value if isinstance(value, list) and len(value) == 2 else (None, None)
        kind: Any = getattr(transformers, str(named), None) if library == "transformers" else None
        if hasattr(kind, "get_attributes") and VIDEOS in kind.get_attributes():
            found[name] = class_without_videos(str(named)).from_pretrained(path / name, local_files_only=True)
    return found
