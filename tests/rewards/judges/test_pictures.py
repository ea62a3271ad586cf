"""What is drawn, judged by a vision-language model in our own decoder: its numbers are those of transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from burnish.language.model import Shown
from burnish.registry import lookup
from burnish.rewards.judging import judge
from burnish.types.clips import Clip
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from tests.support.tiny_language import tiny_language

CAT = Prompt(text="a cat")
QUESTIONS = [["How many cats are there?", "two"], ["Is there a cat?", "Yes"]]
TIFA = Prompt(text="two cats", extra='{"vqa_list": [["How many cats are there?", "two"], ["Is there a cat?", "Yes"]]}')


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judges")
    tiny_language(folder / "bytes", "qwen2_5_vl")
    tiny_language(folder / "llama", "llama")
    return folder


def ask(folder, *samples, prompt=CAT, kind="bytes", **options):
    one = lookup("flow reward", "judge")(path=str(folder / kind), **options)
    one.check([prompt])
    return judge(one, list(samples), [prompt] * len(samples))


def first_token(folder, sample: np.ndarray, question: str) -> tuple[torch.Tensor, object]:
    """Probabilities of the first token, by transformers alone."""
    from burnish.models.language.loading import load_language_model
    from burnish.options.language import LanguageModelOptions

    model = load_language_model(LanguageModelOptions(path=str(folder / "bytes"), device="cpu"))
    network = AutoModelForImageTextToText.from_pretrained(folder / "bytes")
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    encoded = model.encode(chat, Shown([Image.fromarray(sample)]))
    features = encoded.features[0].tensors
    types = (encoded.ids[0] == network.config.image_token_id).long()
    with torch.no_grad():
        logits = network(
            input_ids=encoded.ids[0][None], pixel_values=features["images"], image_grid_thw=features["image_grid"],
            mm_token_type_ids=types[None],
        ).logits[0, -1]  # fmt: skip
    logits[model.banned] = -torch.inf
    return logits.softmax(-1), model


def test_a_probability_is_that_of_transformers(folder):
    """Answers of one token, which one forward pass per picture reads."""
    question = 'Does this image show "a cat"? Answer Yes or No.'
    shares, model = first_token(folder, picture(0), question)
    yes, no = (float(shares[model.response_ids(letter)[0]]) for letter in "YN")
    options = {"form": "answers", "answers": {"Y": 1.0, "N": 0.0}, "least": 0.0}
    (plain,) = ask(folder, picture(0), **options, normalise=False)
    assert plain.value == pytest.approx(yes, rel=1e-4)
    other, batched = ask(folder, picture(1), picture(0), **options)
    assert other.value != batched.value == pytest.approx(yes / (yes + no), rel=1e-4)


def test_soft_tifa_counts_first_tokens_alone_and_one_that_is_shared_twice(folder):
    expected = []
    for (question, _), firsts in zip(QUESTIONS, ("tT  2 ", "Yy  "), strict=True):
        shares, model = first_token(folder, picture(0), f"{question} Answer in one word.")
        # a token per byte: "two" and " two" begin with "t" and with a space, which counts for each spelling
        expected.append(sum(float(shares[model.response_ids(letter)[0]]) for letter in firsts))
    (gm,) = ask(folder, picture(0), prompt=TIFA, form="soft_tifa_gm")
    (am,) = ask(folder, picture(0), prompt=TIFA, form="soft_tifa_am")
    assert am.value == pytest.approx(sum(expected) / 2, rel=1e-4)
    assert gm.value == pytest.approx(math.sqrt(expected[0] * expected[1]), rel=1e-4)
    assert "AM" in gm.note
    nested = Prompt(text="two cats", extra=f'{{"extra_info": {TIFA.extra}}}')
    assert ask(folder, picture(0), prompt=nested, form="soft_tifa_gm")[0].value == gm.value
    with pytest.raises(ValueError, match="has no vqa_list"):
        ask(folder, picture(0), form="soft_tifa_gm")


def test_scores_are_the_expected_digit(folder):
    question = 'How well does this image show "a cat", from 1 (not at all) to 5 (everything, without flaws)? '
    shares, model = first_token(folder, picture(0), f"{question}Answer with one digit.")
    likely = torch.tensor([float(shares[model.response_ids(str(k))[0]]) for k in range(1, 6)])
    (found,) = ask(
        folder, picture(0), form="answers", answers={str(k): float(k) for k in range(1, 6)}, least=0.0,
        question_file=str(_written(folder, question + "Answer with one digit.")),
    )  # fmt: skip
    assert found.value == pytest.approx(float((likely * torch.arange(1.0, 6)).sum() / likely.sum()), rel=1e-4)


def _written(folder, text: str):
    (folder / "question.txt").write_text(text)
    return folder / "question.txt"


def test_pictures_of_a_pair_are_told_to_be_alone(folder):
    assert "no other sample" in ask(folder, picture(0), form="pair")[0].note


def test_edits_and_clips_are_shown_with_what_belongs_to_them(folder):
    edit = Prompt(text="a cat", images=(Media.array(picture(5)),))
    values = [
        ask(folder, picture(0), prompt=CAT, form="vqascore")[0].value,
        ask(folder, picture(0), prompt=edit, form="vqascore")[0].value,
        ask(folder, picture(0), prompt=edit, form="vqascore", conditions=False)[0].value,
    ]
    assert values[0] == pytest.approx(values[2], rel=1e-4) != values[1]
    clip = Clip(frames=np.stack([picture(i) for i in range(4)]), fps=4.0)
    still = Clip(frames=np.stack([picture(0)] * 4), fps=4.0)
    shown = ask(folder, clip, still, form="vqascore", shown_frames=2)
    assert shown[0].value != shown[1].value
    assert ask(folder, still, form="vqascore", shown_frames=1)[0].value == pytest.approx(values[0], rel=1e-4)
    apart = ask(folder, clip, form="vqascore", frames={"count": 2})[0].value
    assert apart == pytest.approx((values[0] + ask(folder, picture(3), form="vqascore")[0].value) / 2, rel=1e-4)


def test_what_can_t_judge_is_refused(folder):
    with pytest.raises(ValueError, match="has no processor"):
        ask(folder, picture(0), kind="llama")
    with pytest.raises(ValueError, match="belongs to the judge"):
        ask(folder, picture(0), form="unified_reward_2")
    with pytest.raises(ValueError, match="never read with frames"):
        ask(folder, picture(0), frames={"count": 2}, shown_frames=3)
    file = _written(folder, "Which is better?")
    with pytest.raises(ValueError, match=r"has no \{prompt\} in it"):
        ask(folder, picture(0), form="unified_reward_think", question_file=str(file))
