"""A prompt for a tiny language model, with pictures, a video and sound where it takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.language.model.processors import load_processor
from burnish.models.loading import quietly
from burnish.models.tiny.calls import PROMPT, picture
from burnish.models.tiny.language.base import Kind

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

FRAMES, FPS = 6, 4.0
SECONDS, RATE = 1.5, 16000
SIZES = ((30, 20), (17, 40), (64, 64))  # of pictures: odd ones, wide and high


def load(folder: Path) -> tuple[nn.Module, Any]:
    """A model as anyone would load it, in float32, and what makes tensors of its prompts."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM, AutoTokenizer

    with quietly():
        kinds: tuple[Any, ...] = (AutoModelForMultimodalLM, AutoModelForCausalLM)
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        seeing = type(config) in AutoModelForMultimodalLM._model_mapping
        kind = kinds[0] if seeing else kinds[1]
        network: nn.Module = kind.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, dtype=torch.float32
        )
        reader = load_processor(folder) or AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    return network.eval(), reader


def example_prompt(folder: Path, reader: Any, kinds: Sequence[Kind], seed: int) -> dict[str, Tensor]:
    """The tensors of a prompt.

    Args:
        folder: of the model, for its chat template.
        reader: its processor, or its tokenizer.
        kinds: what the prompt brings, in order.
        seed: of pictures, videos and sounds.
    """
    from transformers import AutoTokenizer

    parts = [*({"type": kind} for kind in kinds), {"type": "text", "text": PROMPT}]
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )
    if reader.__class__ is tokenizer.__class__:
        return dict(reader(text, return_tensors="pt", add_special_tokens=False))
    sizes = [SIZES[number % len(SIZES)] for number in range(kinds.count("image"))]
    given: dict[str, Any] = {"text": [text], "return_tensors": "pt"}
    if sizes:
        given["images"] = [picture(height, width, seed + i) for i, (width, height) in enumerate(sizes)]
    if "video" in kinds:
        given["videos"] = [video(seed)]
        seen = {"frames_indices": list(range(FRAMES))}  # which some processors write times of
        given["video_metadata"] = [{"fps": FPS, "total_num_frames": FRAMES, "duration": FRAMES / FPS, **seen}]
    if "audio" in kinds:
        given |= {"audio": [sound(seed)], "sampling_rate": RATE}
    with quietly():
        return dict(reader(**given))


def trial(network: nn.Module, prompt: dict[str, Tensor]) -> Tensor:
    """Logits [V] of the first token of a response."""
    import torch

    # Llama 4's pixels are bfloat16, PaliGemma's processor makes labels
    given = {
        name: value.float() if value.is_floating_point() else value
        for name, value in prompt.items()
        if name != "labels"
    }
    with torch.no_grad():
        return network(**given).logits[0, -1]  # type: ignore[no-any-return]


def video(seed: int) -> np.ndarray:
    """Frames uint8 [F, H, W, 3]."""
    import numpy as np

    return np.stack([np.asarray(picture(20, 30, seed + number)) for number in range(FRAMES)])


def sound(seed: int) -> np.ndarray:
    """A tone float32 [N] that rises, from a pitch of the seed on."""
    import numpy as np

    seconds = np.arange(round(SECONDS * RATE)) / RATE
    pitch = 200 + 150 * (seed % 7)
    return (0.5 * np.sin(2 * np.pi * pitch * seconds * (1 + seconds))).astype(np.float32)
