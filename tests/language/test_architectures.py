"""Every decoder that is loaded computes what transformers computes, in training and in sampling: windows included."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from burnish.language.attention import Plan, attend
from burnish.language.decoding import decode
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.language.segments import Segment
from burnish.models.language.loading import load_language_model
from burnish.models.language.packed import TextModel
from burnish.options.flow import ModelOptions
from burnish.utils import random
from burnish.utils.errors import UserError
from tests.support.language_samples import responses, their_logits
from tests.support.tiny_language import SEEING, chat, picture, tiny_language

WINDOW = 6  # of tokens: prompts and responses are longer
WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW}
ALTERNATING = ["full_attention", "sliding_attention", "full_attention"]
CASES = {
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "mistral with windows in some layers": ("mistral", {"sliding_window": WINDOW, "layer_types": ALTERNATING}),
    "ministral": ("ministral", {"sliding_window": WINDOW, "layer_types": ALTERNATING}),
    "qwen2 with windows": ("qwen2", WINDOWS | {"max_window_layers": 1}),
    "qwen2 with windows switched off": ("qwen2", {"use_sliding_window": False, "sliding_window": WINDOW}),
    "qwen3": ("qwen3", {}),
    "qwen3 with windows": ("qwen3", WINDOWS | {"max_window_layers": 2}),
    "qwen2_moe": ("qwen2_moe", {}),
    "qwen2_moe with windows": ("qwen2_moe", WINDOWS | {"max_window_layers": 3}),
    "qwen3_moe with windows": ("qwen3_moe", WINDOWS),
    "qwen2_vl with windows": ("qwen2_vl", WINDOWS | {"max_window_layers": 1}),
    "qwen2_5_vl with windows": ("qwen2_5_vl", WINDOWS | {"max_window_layers": 1}),
}


@cache
def both(case):
    """Our model and theirs."""
    family, more = CASES[case]
    folder = tiny_language(Path(tempfile.mkdtemp(prefix="burnish-")), family, **more)
    kind = AutoModelForImageTextToText if family in SEEING else AutoModelForCausalLM
    theirs = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return load_language_model(ModelOptions(path=str(folder), device="cpu")), theirs


def expected(case, completion, temperature):
    """Log-probs of every response by transformers' own forward, one response at a time."""
    model, theirs = both(case)
    found = torch.zeros(completion.ids.shape)
    for row, length in enumerate(completion.length.tolist()):
        response = completion.ids[row, :length]
        prompt = int(completion.prompts.index[row])
        with torch.no_grad():
            logits = their_logits(CASES[case][0], theirs, completion.prompts.table, prompt, response) / temperature
        logits[:, model.banned] = -torch.inf
        found[row, :length] = logits.log_softmax(-1).gather(1, response[:, None])[:, 0]
    return found


@pytest.mark.parametrize("case", CASES)
def test_sampled_and_scored_as_transformers_does(case):
    model, _ = both(case)
    parts = [("Tell me how you are.",), ("Hi", "you")]
    parts += [("What is ", picture(0), "?")] if CASES[case][0] in SEEING else []
    encoded = type(model.encode(*chat("a"))).cat([model.encode(*chat(*some)) for some in parts])
    index = [row for row in range(len(encoded)) for _ in range(2)]
    keys = [random.key(0, case, place) for place in range(len(index))]
    sampled = decode(model, model.network, encoded, index, keys, Sampling(max_new_tokens=9, temperature=0.8))
    made_up = responses(model, encoded, index, [(9, 3)[place % 2] for place in range(len(index))])
    for completion in (sampled, made_up):
        wanted = expected(case, completion, 0.8)
        for layout in ("padded", "packed", "shared"):
            with torch.no_grad():
                ours = response_logprobs(model, model.network, completion, temperature=0.8, layout=layout)
            torch.testing.assert_close(ours.logprob, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(sampled.logprob, expected(case, sampled, 0.8), rtol=0, atol=1e-5)


def test_a_window_is_that_of_a_mask_in_every_arrangement_of_segments():
    segments = [Segment(0, 9), Segment(9, 4), Segment(13, 5, 0), Segment(18, 3, 1), Segment(21, 4, 0)]
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 25, 8, generator=draw) for _ in range(3))
    layer = torch.nn.Identity()
    layer.sliding_window = WINDOW
    ours, _ = attend(layer, q, k, v, None, scaling=0.3, plan=Plan.of(segments))
    seen = torch.zeros(25, 25, dtype=torch.bool)
    for segment in segments:
        own = list(range(segment.start, segment.start + segment.length))
        before = segments[segment.prefix] if segment.prefix is not None else Segment(0, 0)
        line = [*range(before.start, before.start + before.length), *own]
        for place, token in enumerate(line):
            if token in own:
                seen[token, line[max(place - WINDOW + 1, 0) : place + 1]] = True
    scores = (q @ k.transpose(-1, -2) * 0.3).masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(ours, (scores.softmax(-1) @ v).transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_every_architecture_that_is_read_is_compared():
    compared = {family for family, _ in CASES.values()} | {"llama"}  # llama: tests/language/test_logprobs.py
    assert set(TextModel.model_types) <= compared


def test_attention_of_other_kinds_is_refused(tmp_path):
    folder = tiny_language(tmp_path, "qwen3")
    config = json.loads((folder / "config.json").read_text())
    kinds = ["full_attention", "chunked_attention", "full_attention"]
    (folder / "config.json").write_text(json.dumps(config | {"layer_types": kinds}))
    with pytest.raises(UserError, match="layers of type chunked_attention"):
        load_language_model(ModelOptions(path=str(folder), device="cpu"))
