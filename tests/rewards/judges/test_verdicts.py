"""What published judges write is read as they write it; a refusal, or a text that was cut, has no value."""

from __future__ import annotations

import pytest

from burnish.rewards.judges import verdicts

RATIONAL = """<think>The text should get ## Score: 1</think>
# Detailed Judgement
1. Text Faithfulness:
   1. a dog is there
## Score: 3.5
2. Physical and Visual Quality:
## Score: 7
3. Text Rendering:
## Score: {last}
# Summary: good. ## Score: 1
"""
READ = [
    ("unified_reward", "Final Score: 3.5", 0.7),
    ("unified_reward", "<think>Final Score: 1</think> Final Score: **4**", 0.8),
    ("unified_reward", "Final Score: 7", None),
    ("unified_reward", "<think>Final Score: 3, or", None),
    ("unified_reward_2", "Alignment Score (1-5): 4.0\nCoherence Score (1-5): 3.5\nStyle Score (1-5): 1.5", 0.5),
    ("unified_reward_2", "Alignment Score (1-5): 4.0\nCoherence Score (1-5): 3.5", None),
    ("unified_reward_think", "<think>Image 2 is better?</think><answer>Image 1 is better</answer>", 1.0),
    ("unified_reward_think", "<answer> image 2 is better </answer>", 0.0),
    ("unified_reward_think", "Image 2 is better", None),
    ("unified_reward_flex", 'So:\n```json\n{"dims": {"a": [6, 4]}, "winner": "Image 2"}\n```', 0.0),
    ("unified_reward_flex", '{"winner": "Image 2"} no, {"winner": "Image 1"}', 1.0),
    ("unified_reward_flex", '{"winner": "Image 1", "dims"', None),
    ("unified_reward_flex", '{"winner": "both"}', None),
    ("unified_reward_edit", '{"reasoning": "{", "score": [20, 15]}', 0.7),
    ("unified_reward_edit", '{"score": [20, 26]}', None),
    ("unified_reward_edit", '{"score": []}', None),
    ("rational_rewards", RATIONAL.format(last="N/A"), (3.75 - 1) / 3),
    ("rational_rewards", RATIONAL.format(last="1"), (8.5 / 3 - 1) / 3),
    ("rational_rewards", RATIONAL.partition("3. Text")[0], None),
    ("rational_rewards_edit", RATIONAL.format(last="4"), None),
    ("qwen_aesthetic", "<Score>4</Score>", 0.8),
    ("qwen_aesthetic", "<Score>9</Score>", None),
]


@pytest.mark.parametrize(("form", "text", "value"), READ)
def test_a_verdict_is_read_or_has_no_value(form, text, value):
    found = getattr(verdicts, form)(text)
    assert found.value == (None if value is None else pytest.approx(value))
    assert found.note


@pytest.mark.parametrize("form", sorted({form for form, _, _ in READ}))
@pytest.mark.parametrize(
    "text",
    [
        "", "I'm sorry, but I can't help with that.", "{" * 20_000, '{"a":' * 5_000, "Final Score:" + " " * 200_000,
        "Style Score" + "\t" * 200_000, "<answer>" * 50_000, "\n" * 200_000, "## Score: " * 20_000,
    ],
)  # fmt: skip
def test_a_refusal_and_nonsense_have_no_value(form, text):
    found = getattr(verdicts, form)(text)
    assert found.value is None
    assert "can't be read" in found.note
