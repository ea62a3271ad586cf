"""How long a prompt may be with its response."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from burnish.models.language.base import positions_within
from burnish.models.language.loading import load_language_model
from burnish.options.language import LanguageModelOptions
from tests.support.tiny_language import tiny_language

THETA = {"rope_theta": 10000.0}
SCALED = {"factor": 4.0, **THETA}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3, **SCALED}
PLAIN = {"rope_type": "default", **THETA}
DYNAMIC = {"rope_type": "dynamic", **SCALED}


@pytest.mark.parametrize(
    ("rope", "most", "name"),
    [
        (PLAIN, 256, "max_position_embeddings"),
        ({"rope_type": "linear", **SCALED}, 1024, "max_position_embeddings"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 128, **SCALED}, 512, "max_position_embeddings"),
        (DYNAMIC, 256, "dynamic RoPE changes"),
        ({**LONG, "original_max_position_embeddings": 64}, 64, "LongRoPE changes"),
        ({"full_attention": DYNAMIC, "sliding_attention": PLAIN}, 256, "dynamic RoPE changes"),
        ({"full_attention": PLAIN, "sliding_attention": PLAIN}, 256, "max_position_embeddings"),
    ],
)
def test_rows_end_where_angles_of_tokens_before_would_change(rope, most, name):
    by_layer = any(isinstance(one, dict) for one in rope.values())
    config = LlamaConfig(max_position_embeddings=256, head_dim=6, rope_parameters=PLAIN if by_layer else rope)
    config.rope_parameters = rope  # Llama has the same for all layers, and would refuse others
    found = positions_within(config)
    assert found.most == most
    assert found.name.endswith(name)


def test_angles_of_a_longrope_stay_up_to_that_and_change_behind_it(tmp_path):
    rope = {**LONG, "original_max_position_embeddings": 12}
    folder = tiny_language(tmp_path, "llama", rope_parameters=rope)
    model = load_language_model(LanguageModelOptions(path=str(folder), device="cpu", family="transformers"))
    network = model.network
    network.set_attn_implementation("sdpa")  # called on its own
    ids = torch.arange(4, 4 + model.max_positions + 1)[None]
    with torch.no_grad():
        longest, beyond = (network(input_ids=ids[:, :length]).logits[:, :6] for length in (12, 13))
        short = network(input_ids=ids[:, :6]).logits
    assert model.max_positions == 12
    torch.testing.assert_close(longest, short)
    assert (beyond - short).abs().max() > 1e-3
