"""The processor of a directory: what makes tensors of text, images, videos and sound; torchvision is not needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.reading import understood
from burnish.utils.weights import quietly

COMBINED, IMAGES, VIDEOS = "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"
# classes that transformers doesn't show without torchvision, and whose modules their stand-ins don't name
BASES = {
    "VideoProcessorMixin": "transformers.video_processing_utils",
    "BaseVideoProcessor": "transformers.video_processing_utils",
}
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
ONES = f"zero one two three four five six seven eight nine {TEENS}".split(" ")
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
PARTS = {"image_processor": "ImageProcessor", "video_processor": "VideoProcessor"}


def load_processor(path: Path) -> Any | None:
    """The processor of a model; None for a model that reads text alone.

    Where torchvision is missing, images are processed by PIL if the class has a form that does; all else that wants
    it gets functions of torch in its place.

    Args:
        path: of the model.

    Raises:
        UserError: it can't be loaded, or needs what is not installed; the message names the class.
    """
    if not any((path / name).is_file() for name in (COMBINED, IMAGES, VIDEOS)):
        return None
    named = _class_name(path)
    with understood(f"{path} has the processor {named}, which can't be loaded"), quietly("transformers"):
        if find_spec("torchvision") is not None:
            from transformers import AutoProcessor

            return AutoProcessor.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        return class_without_torchvision(named, path).from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )


def _class_name(path: Path) -> str:
    """The class of a processor, as one of its files names it, or as transformers has it for the type of the model."""
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    for name in (COMBINED, IMAGES, VIDEOS, "tokenizer_config.json"):  # the first that names one wins
        if (path / name).is_file() and (found := read_object(path / name).get("processor_class")):
            return str(found)
    kind = read_object(path / "config.json").get("model_type")
    if kind not in PROCESSOR_MAPPING_NAMES:
        raise UserError(
            f"{path} has a {IMAGES}, but none of its files names a processor_class, and transformers knows none for "
            f"model_type {kind}; download the model again"
        )
    return str(PROCESSOR_MAPPING_NAMES[kind])


def class_without_torchvision(named: str, path: Path | None = None) -> Any:
    """A processor's class whose parts are loaded without torchvision.

    It has the name and the module of the original, so that what saves it writes those.

    Args:
        named: class in transformers, such as Qwen2_5_VLProcessor.
        path: directory whose files name the classes of its parts; None if they are given.
    """
    from transformers import ProcessorMixin

    base: Any = real_class(named) if _known(named) else None
    processes = isinstance(base, type) and issubclass(base, ProcessorMixin)
    if not processes:
        raise UserError(
            f"{path} names the processor {named}, which transformers doesn't have; download the model again"
        )
    parts = {} if path is None else {f"{part}_class": name for part, name in _part_classes(path, base)}
    own = {"get_possibly_dynamic_module": staticmethod(partial(_resolved, base.get_possibly_dynamic_module))}
    return type(named, (base,), {**own, **parts, "__module__": base.__module__, "__qualname__": named})


def _resolved(original: Any, named: str) -> Any:
    """What transformers finds by a name, or the class behind what only says that torchvision is missing."""
    return real_class(named) if _known(named) else original(named)


def _part_classes(path: Path, processor: Any) -> Iterator[tuple[str, str]]:
    """The classes of those parts that transformers itself would not load."""
    images = _part_type(path, "image_processor")
    for part in set(processor.get_attributes()) & set(PARTS):
        named = _part_type(path, part) or images.replace("ImageProcessor", "VideoProcessor")
        if part == "video_processor" or not _known(f"{named}Pil"):
            if not (named.endswith(PARTS[part]) and _known(named)):
                raise UserError(
                    f"{path} has a processor whose {part} is {named or 'not named in its files'}, which transformers "
                    "can't load without torchvision; run: pip install torchvision"
                )
            yield part, named


def _part_type(path: Path, part: str) -> str:
    """The class of a part, without the marks of its forms (Fast, Pil); "" if no file names it."""
    key = f"{part}_type"
    combined = read_object(path / COMBINED).get(part) if (path / COMBINED).is_file() else None
    named = combined.get(key) if isinstance(combined, dict) else None
    own = path / (VIDEOS if part == "video_processor" else IMAGES)
    if not named and own.is_file():
        named = read_object(own).get(key)
    return str(named or "").removesuffix("Fast").removesuffix("Pil")


def _known(named: str) -> bool:
    import transformers

    return named in BASES or named in transformers._class_to_module


def real_class(named: str) -> Any:
    """A class of transformers, also one that is not shown where torchvision is missing."""
    import transformers

    found: Any = getattr(transformers, named, None)
    if found is None or getattr(found, "is_dummy", False):
        from burnish.models.processors import import_without_torchvision

        found = getattr(import_without_torchvision(BASES.get(named) or found.__module__), named)
    module: Any = sys.modules[found.__module__]
    if getattr(module, "num2words", module) is None:  # SmolVLM's processor asks for that package
        module.num2words = in_words
    return found


def in_words(number: int) -> str:
    """A number below a thousand as English says it: 21 is twenty-one, 104 one hundred and four."""
    if number >= 100:
        rest = f" and {in_words(number % 100)}" if number % 100 else ""
        return f"{ONES[number // 100]} hundred{rest}"
    if number < 20:
        return ONES[number]
    return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")


def image_tokens(processor: Any, width: int, height: int) -> int | None:
    """Tokens of an image by its size, by the processor's own arithmetic; None if it has none.

    Raises:
        ValueError: it refuses such an image.
    """
    count = getattr(processor, "_get_num_multimodal_tokens", None)
    return count and int(count(image_sizes=[(height, width)])["num_image_tokens"][0])


def audio_rate_of(processor: Any) -> int | None:
    """Samples per second of the sounds that a processor reads; None if it reads none."""
    rates = (
        getattr(getattr(processor, name, None), "sampling_rate", None)
        for name in ("feature_extractor", "audio_processor")
    )
    return next((int(rate) for rate in rates if rate is not None), None)
