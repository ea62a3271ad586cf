"""Prompts on their way to vLLM: the ids, positions and features that the model's processor made, as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.types.completion import Completion, Encoded, Features


def packed(prompts: Encoded) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """The sizes of each prompt's media, by their kind, and the arrays of all prompts."""
    arrays: dict[str, np.ndarray] = {}
    for number, (ids, positions, features) in enumerate(
        zip(prompts.ids, prompts.positions, prompts.features, strict=True)
    ):
        own = {"ids": ids}
        if features.sizes:
            own |= {"positions": positions, **{f"features/{name}": value for name, value in features.tensors.items()}}
        arrays |= {f"{number}/{name}": _array(tensor) for name, tensor in own.items()}
    return [features.sizes for features in prompts.features], arrays


def _array(tensor: Tensor) -> np.ndarray:
    """NumPy has no bfloat16, in which pixels may be kept."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


def with_responses(completion: Completion) -> Encoded:
    """Prompts and their responses as texts of their own [B], to be scored from the first token on."""
    parts = completion.prompts.rows()
    ids, positions, features = [], [], []
    for row, length in enumerate(completion.length.tolist()):
        ids.append(torch.cat([parts.ids[row], completion.ids[row, :length]]))
        positions.append(torch.cat([parts.positions[row], completion.positions[row, :, :length]], 1))
        features.append(Features.joined([parts.features[row], completion.features[row]]))
    return Encoded(ids=ids, positions=positions, features=features)


def unpacked(rows: Sequence[tuple[dict[str, Any], dict[str, np.ndarray]]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Answers in order of their rows: ids [B, T] long, log-probs [B, T] float32, length [B] long, finished [B] bool."""
    length = torch.tensor([len(arrays["ids"]) for _, arrays in rows], dtype=torch.long)
    longest = int(length.max()) if rows else 0
    ids, logprob = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest)
    for row, (_, arrays) in enumerate(rows):
        ids[row, : length[row]] = torch.from_numpy(arrays["ids"])
        logprob[row, : length[row]] = torch.from_numpy(arrays["logprob"])
    finished = torch.tensor([header["finished"] for header, _ in rows], dtype=torch.bool)
    return ids, logprob, length, finished
