"""Tokens per CPU-second of sampling: our decoder beside transformers' generate, on a tiny Qwen2.5-VL.

``python -m benchmarks.decoding`` interleaves both in one run, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from burnish.diffusion.options import ModelOptions
from burnish.language.decoders import decode
from burnish.language.model.loading import load_language_model
from burnish.language.sampling import Sampling
from burnish.types.completion import Encoded
from burnish.utils import random
from tests.support.tiny_language import QWEN, build_tokenizer, chat, noise_image

PATCH, MERGE = 7, 2


def build(folder: Path, vocabulary: int) -> None:
    """The size of the quickstart's model: hidden 96, 3 layers, 3 heads, 1 key-value head."""
    tokenizer = build_tokenizer("qwen")
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(QWEN))
    text = {
        "vocab_size": vocabulary, "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3,
        "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]},
        "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 48, "intermediate_size": 96, "num_heads": 4, "out_hidden_size": 96,
        "patch_size": PATCH, "spatial_merge_size": MERGE, "window_size": 56, "fullatt_block_indexes": [1],
    }  # fmt: skip
    torch.manual_seed(0)
    network = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config=text,
            vision_config=vision,
            tie_word_embeddings=False,
            image_token_id=image,
            video_token_id=video,
            vision_start_token_id=start,
            vision_end_token_id=end,
        )
    )
    network.generation_config.eos_token_id = tokenizer.eos_token_id
    network.generation_config.pad_token_id = tokenizer.pad_token_id
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    pixels = {"patch_size": PATCH, "temporal_patch_size": 2, "merge_size": MERGE, "image_mean": [0.5] * 3}
    pixels |= {"image_std": [0.5] * 3, "size": {"shortest_edge": 196, "longest_edge": 112 * 112}}
    kind = {"image_processor_type": "Qwen2VLImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels | kind))


def theirs(network: Any, encoded: Encoded, n: int, tokens: int) -> Callable[[], int]:
    """Transformers' generate, with n responses per prompt; prompts are padded on the left."""
    longest, pad = max(encoded.lengths), network.generation_config.pad_token_id
    ids = torch.full((len(encoded), longest), pad)
    mask = torch.zeros_like(ids)
    for row, own in enumerate(encoded.ids):
        ids[row, longest - len(own) :] = own
        mask[row, longest - len(own) :] = 1
    inputs = {
        "input_ids": ids, "attention_mask": mask,
        "mm_token_type_ids": (ids == network.config.image_token_id).int(),
        "pixel_values": torch.cat([features.tensors["pixel_values"] for features in encoded.features]),
        "image_grid_thw": torch.cat([features.tensors["image_grid_thw"] for features in encoded.features]),
    }  # fmt: skip

    def sample() -> int:
        out = network.generate(
            **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=n,
            max_new_tokens=tokens, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        return int((out.sequences[:, longest:] != pad).sum())

    return sample


def measure(samplers: dict[str, Callable[[], int]], repeats: int) -> dict[str, list[float]]:
    """Tokens per CPU-second of each, turn by turn."""
    rates: dict[str, list[float]] = {name: [] for name in samplers}
    for repeat in range(repeats + 1):
        for name, sample in samplers.items():
            start = time.process_time()
            count = sample()
            if repeat:  # the first warms up
                rates[name].append(count / (time.process_time() - start))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--n", type=int, default=8, help="responses per prompt")
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="leave transformers' generate out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder, arguments.vocabulary)
        model: Any = load_language_model(ModelOptions(path=name, device="cpu"))
        other = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        prompts = range(arguments.prompts)
        encoded = Encoded.cat([model.encode(*chat(noise_image(k, 28, 28), "Which digit?")) for k in prompts])
        index = [k for k in prompts for _ in range(arguments.n)]
        keys = [random.key(0, k, place) for place, k in enumerate(index)]
        sampling = Sampling(max_new_tokens=arguments.tokens)

        def ours() -> int:
            return int(decode(model, model.network, encoded, index, keys, sampling).length.sum())

    samplers: dict[str, Callable[[], int]] = {"burnish": ours}
    if not arguments.alone:
        samplers["transformers"] = theirs(other, encoded, arguments.n, arguments.tokens)
    print(f"{len(index)} rows x {arguments.tokens} tokens, prompts of {max(encoded.lengths)}")
    for name, rates in measure(samplers, arguments.repeats).items():
        # even CPU time grows where other programs share the caches; the quickest turn is nearest to an idle machine
        print(f"{name:14} {statistics.median(rates):10,.0f} tokens per CPU-second, at best {max(rates):,.0f}")


if __name__ == "__main__":
    main()
