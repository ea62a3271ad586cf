"""From token ids and processed pixels to what vLLM's engine takes in: no processor runs a second time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

FIELDS = {  # transformers' names of pixels and of their grid
    "image": ("pixel_values", "image_grid_thw"),
    "video": ("pixel_values_videos", "video_grid_thw"),
}


def key_of(ids: Sequence[int], names: Sequence[str]) -> str:
    """What a prompt is looked up by: a hash of its tokens and of the names of its media."""
    digest = hashlib.blake2b(np.asarray(ids, dtype=np.int64).tobytes(), digest_size=16)
    digest.update("\n".join(names).encode())
    return digest.hexdigest()


class Prompt:
    """Tokens with their media.

    ``media`` maps image and video to their placeholder's id; ``arrays`` holds ``ids`` [L] and, where there are media,
    ``positions`` [A, L] and for each kind ``image`` (patches [P, D] of all images, or tiles [I, 3, H, W]) with
    ``image_grid`` [I, 3].
    """

    def __init__(self, media: dict[str, int], arrays: dict[str, np.ndarray]) -> None:
        self.ids: list[int] = arrays["ids"].tolist()
        self.media, self.arrays = media, arrays
        self.ranges = {kind: self._ranges(kind, placeholder) for kind, placeholder in media.items()}
        self.names = {kind: self._names(kind) for kind in media}

    def _ranges(self, kind: str, placeholder: int) -> list[np.ndarray]:
        """The places [N] of each image or video in the prompt."""
        places = np.flatnonzero(self.arrays["ids"] == placeholder)
        patches = self.arrays[f"{kind}_grid"].prod(-1)
        ends = (patches.cumsum() * len(places)) // patches.sum()
        return np.split(places, ends[:-1])

    def _pixels(self, kind: str) -> list[np.ndarray]:
        grid = self.arrays[f"{kind}_grid"]
        ends = np.arange(1, len(grid)) if self.arrays[kind].ndim == 4 else grid.prod(-1).cumsum()[:-1]
        return np.split(self.arrays[kind], ends)

    def _names(self, kind: str) -> list[str]:
        """A hash of each image or video: vLLM's caches know them by it."""
        found = []
        for pixels, grid in zip(self._pixels(kind), self.arrays[f"{kind}_grid"], strict=True):
            digest = hashlib.blake2b(np.ascontiguousarray(pixels).tobytes(), digest_size=16)
            digest.update(np.ascontiguousarray(grid).tobytes())
            found.append(f"{kind}-{digest.hexdigest()}")
        return found

    @property
    def key(self) -> str:
        """As :func:`key_of` finds it from what a worker is given: media in order of their places."""
        order = [(int(places[0]), name) for kind in self.media for places, name in self._placed(kind)]
        return key_of(self.ids, [name for _, name in sorted(order)])

    def _placed(self, kind: str) -> list[tuple[np.ndarray, str]]:
        return list(zip(self.ranges[kind], self.names[kind], strict=True))

    def engine_input(self, processor: Any) -> Any:
        """What ``LLMEngine.add_request`` takes: everything that vLLM's own processor would have made."""
        import torch
        from transformers import BatchFeature
        from vllm.inputs import mm_input, tokens_input
        from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

        if not self.media:
            return tokens_input(self.ids)
        tensors: dict[str, Any] = {}
        for kind in self.media:
            pixels, grid = (torch.from_numpy(self.arrays[name].copy()) for name in (kind, f"{kind}_grid"))
            if pixels.ndim == 4:  # each tile is an image by itself
                tensors["pixel_values"] = pixels
                tensors["pixel_attention_mask"] = torch.ones(len(pixels), *pixels.shape[2:], dtype=torch.long)
                tensors["num_patches"] = torch.ones(len(pixels), dtype=torch.long)
            else:
                tensors |= dict(zip(FIELDS[kind], (pixels, grid), strict=True))
        features = BatchFeature(tensors)
        items = MultiModalKwargsItems.from_hf_inputs(features, processor._get_mm_fields_config(features, {}))
        ranges: dict[str, list[Any]] = {}
        for kind, places in self.ranges.items():
            ranges[kind] = []
            for own in places:
                first, length = int(own[0]), int(own[-1]) + 1 - int(own[0])
                mask = torch.zeros(length, dtype=torch.bool)
                mask[torch.from_numpy(own - first)] = True
                whole = length == len(own)
                ranges[kind].append(PlaceholderRange(offset=first, length=length, is_embed=None if whole else mask))
        return mm_input(self.ids, items, self.names, ranges)
