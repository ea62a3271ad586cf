"""From token ids and features to what vLLM's engine takes in: its own processor says where media are laid out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np


def key_of(ids: Sequence[int], names: Sequence[str]) -> str:
    """What a prompt is looked up by: a hash of its tokens and of the names of its media."""
    digest = hashlib.blake2b(np.asarray(ids, dtype=np.int64).tobytes(), digest_size=16)
    digest.update("\n".join(names).encode())
    return digest.hexdigest()


class Prompt:
    """Tokens with their media.

    ``sizes`` are those of the media before they were processed, by kind; ``arrays`` holds ``ids`` [L] and, where there
    are media, ``positions`` [A, L] and ``features/NAME``, as the processor of transformers names them.
    """

    def __init__(self, sizes: dict[str, list[list[float]]], arrays: dict[str, np.ndarray]) -> None:
        self.ids: list[int] = arrays["ids"].tolist()
        self.sizes, self.arrays = sizes, arrays
        self.names: list[str] = []  # of the media, in order of their places

    @property
    def key(self) -> str:
        """As :func:`key_of` finds it from what a worker is given."""
        return key_of(self.ids, self.names)

    def engine_input(self, processor: Any) -> Any:
        """What ``LLMEngine.add_request`` takes.

        Raises:
            ValueError: vLLM expects other features, or other tokens in the place of the media.
        """
        from vllm.inputs import mm_input, tokens_input
        from vllm.multimodal.inputs import MultiModalKwargsItems

        if not self.sizes:
            return tokens_input(self.ids)
        blanks = {kind: [blank(kind, size) for size in sizes] for kind, sizes in self.sizes.items()}
        data = processor.info.parse_mm_data(blanks, validate=False)
        options = {"do_sample_frames": False} if any(chosen for *_, chosen in self.sizes.get("video", ())) else {}
        with _in_place_of(self._features()):
            processed = processor._apply_hf_processor_main(data, options)
        items = MultiModalKwargsItems.from_hf_inputs(processed, processor._get_mm_fields_config(processed, {}))
        found = processor._find_mm_placeholders(self.ids, processor._get_mm_prompt_updates(data, {}, items))
        for kind, sizes in self.sizes.items():
            if len(found.get(kind, ())) != len(sizes):
                raise ValueError(
                    f"of {len(sizes)} media of kind {kind}, vLLM finds {len(found.get(kind, ()))} in the prompt: it "
                    "writes other tokens for them than the processor of transformers"
                )
        names = {kind: [name_of(kind, item) for item in items[kind]] for kind in self.sizes}
        places = [
            (place.start_idx, name) for kind in self.sizes for place, name in zip(found[kind], names[kind], strict=True)
        ]
        self.names = [name for _, name in sorted(places)]
        return mm_input(self.ids, items, names, {kind: [one.to_range() for one in found[kind]] for kind in self.sizes})

    def _features(self) -> dict[str, Any]:
        import torch

        mark = "features/"
        own = {name.removeprefix(mark): array for name, array in self.arrays.items() if name.startswith(mark)}
        return {name: torch.from_numpy(array.copy()) for name, array in own.items()}


def blank(kind: str, size: Sequence[float]) -> Any:
    """A medium of that kind and size without content, as vLLM takes it: all that depends on its size is right."""
    if kind == "image":
        from PIL import Image

        return Image.new("RGB", (int(size[1]), int(size[0])))
    if kind == "audio":
        return np.zeros(int(size[0]), np.float32), size[1]
    count, height, width = map(int, size[:3])
    fps, chosen = size[3:]
    about = {
        "total_num_frames": count, "fps": fps, "duration": count / fps, "frames_indices": list(range(count)),
        "do_sample_frames": not chosen,
    }  # fmt: skip
    return np.zeros((count, height, width, 3), np.uint8), about


@contextmanager
def _in_place_of(features: dict[str, Any]) -> Iterator[None]:
    """Give vLLM these features in the place of those that the processor makes of blank media.

    Some of its models call the processor for one medium after the other: each call takes the next rows.

    Raises:
        ValueError: some are left.
    """
    from vllm.multimodal.processing.context import InputProcessingContext

    rest, original = dict(features), InputProcessingContext.call_hf_processor

    def call(*arguments: Any, **more: Any) -> Any:
        made = original(*arguments, **more)
        for name in rest.keys() & made.keys():
            count = len(made[name])
            if rest[name][:count].shape == made[name].shape:
                made[name], rest[name] = rest[name][:count].to(made[name].dtype), rest[name][count:]
        return made

    with patch.object(InputProcessingContext, "call_hf_processor", call):
        yield
    if left := sorted(name for name, tensor in rest.items() if len(tensor)):
        raise ValueError(f"vLLM takes {', '.join(left)} in other shapes than the processor of transformers makes them")


def name_of(kind: str, item: Any) -> str:
    """A hash of what vLLM is given of a medium: its caches know it by that."""
    digest = hashlib.blake2b(digest_size=16)
    for name, element in sorted(item.items()):
        digest.update(name.encode())
        for value in element.data if isinstance(element.data, list | tuple) else [element.data]:
            array = np.asarray(value.float() if hasattr(value, "float") else value)
            digest.update(f"{array.shape}".encode() + array.tobytes())
    return f"{kind}-{digest.hexdigest()}"
