"""The table of language models on a chosen dozen: sampled, trained and exported as their own classes compute."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from burnish.models.tiny import describe_language
from burnish.models.tiny.language import LANGUAGE

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import language_row
import language_table
from language_row import EXACT, UPDATES, Row, measure

# windows, recurrent states, tiles, patches, chunks, a prefix that sees all, experts, softcaps, scaled heads, sound
CHOSEN = {
    "gemma3": "ppo", "qwen3_5": "grpo", "internvl": "ppo", "llava_onevision": "grpo", "glm46v": "grpo",
    "idefics3": "ppo", "llama4": "ppo", "paligemma": "grpo", "mistral3": "grpo", "gpt_oss": "ppo", "granite": "ppo",
    "qwen2_5_omni_thinker": "grpo",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_the_chosen_dozen(name, tmp_path):
    row = measure(describe_language(name), tmp_path, [CHOSEN[name]])
    assert not row.refused
    assert not row.faults
    assert getattr(row, CHOSEN[name]) == UPDATES
    exported = row.adapter if CHOSEN[name] == "grpo" else row.weights
    assert exported <= EXACT


@pytest.mark.thorough
@pytest.mark.parametrize("tiny", LANGUAGE, ids=lambda tiny: tiny.name)
def test_every_row_is_without_fault(tiny, tmp_path):
    row = measure(tiny, tmp_path)
    assert not row.faults
    assert not row.refused


def row(**values):
    good = {"tier": "3f", "batch": 1e-6, "sampler": 2e-6, "greedy": "9/9", "shared": 0.0, "grpo": 5, "ppo": 5}
    return Row(**{"name": "one", "model": "OneForCausalLM", "reads": [], **good, **values})


def test_the_page_has_a_row_per_class_and_the_reasons_of_the_others():
    rows = [row(), row(name="two", model="TwoForConditionalGeneration", tier="1a", reads=["image"], turns=1e-6)]
    rows += [row(name="deaf", model="Deaf", refused="its cache is wrong"), row(name="bad", model="Bad", faults=["no"])]
    text = language_table.page(rows)
    assert "**2\nclasses**" in text
    assert "| One | one |  | 3, fast | 1e-6 | 2e-6 | 9/9 | 0 |" in text
    assert "| Two | two | image | 1, anew |" in text
    assert "| Deaf | deaf | its cache is wrong |" in text
    assert "| Bad | bad | no |" in text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batch": 0.1}, "batch differs by 0.1 nats"),
        ({"greedy": "8/9"}, "8 of 9 tokens"),
        ({"ppo": 4}, "4 of 5 updates"),
    ],
)
def test_a_difference_is_a_fault(wrong, said):
    one = row(**wrong)
    language_row.judge(one)
    assert len(one.faults) == 1
    assert said in one.faults[0]
