"""The second quickstart's model and questions as they ship, and the script that made them."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from burnish.data.language.prompts import read_questions
from burnish.data.language.responses import read_responses
from burnish.options.language import LanguageDataOptions
from burnish.registry import lookup
from burnish.rewards.judging import judge
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt
from burnish.utils.paths import ASSETS

pytest.importorskip("sklearn")
SHIPPED = ASSETS / "vlm_quickstart"
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import tiny_training  # noqa: E402
import tiny_vlm  # noqa: E402
import tiny_vlm_data as data  # noqa: E402
import tiny_vlm_model  # noqa: E402

OPTIONS = LanguageDataOptions(train_files="burnish:vlm_quickstart/train.jsonl")
SIGNS = re.compile(r"<think>(\d+)(?:[+,](\d+))?</think>")


pytestmark = pytest.mark.usefixtures("settings_of_torch")


def file(name: str) -> str:
    return f"burnish:vlm_quickstart/{name}.jsonl"


@pytest.fixture(scope="module")
def questions() -> dict[str, list[Prompt]]:
    return {name: read_questions(file(name), OPTIONS) for name in ("train", "heldout")}


def rewards_of(prompts: list[Prompt], responses: list[str]) -> np.ndarray:
    """Whether each response is in its form, and whether it is right: [2, responses]."""
    both = lookup("language reward", "format")(), lookup("language reward", "exact")()
    for one in both:
        one.check(prompts)
    said = [Response(text) for text in responses]
    return np.array([[verdict.value for verdict in judge(one, said, prompts)] for one in both])


def test_every_question_is_there_and_right(questions):
    assert [len(prompts) for prompts in questions.values()] == [768, 192]
    for prompts in questions.values():
        assert {prompt.source for prompt in prompts} == set(data.QUESTIONS)
        assert len({prompt.uid for prompt in prompts}) == len(prompts)
    for name in questions:
        for record in map(json.loads, (SHIPPED / f"{name}.jsonl").read_text().splitlines()):
            shown = [int(data.scans()[1][int(Path(image).stem)]) for image in record["images"]]
            right = {"digit": shown[0], "sum": sum(shown), "larger": max(shown)}[record["data_source"]]
            assert record["answer"] == str(right)
            assert record["prompt"] == "<image>" * len(shown) + data.QUESTIONS[record["data_source"]]
            assert record["data_source"] != "larger" or len(set(shown)) == 2


def test_shipped_pictures_are_the_scans():
    from PIL import Image

    files = sorted((SHIPPED / "images").iterdir())
    assert len(files) > 500
    for picture in files[::25]:
        np.testing.assert_array_equal(np.asarray(Image.open(picture)), data.scans()[0][int(picture.stem)])


def test_no_picture_is_in_two_parts():
    parts = data.split(tiny_training.SEED)
    drawn = [set(part) for part in dataclasses.astuple(parts)]
    assert sum(map(len, drawn)) == len(set.union(*drawn)) == 1797
    scans = {number: data.scans()[0][number].tobytes() for number in set.union(*drawn)}
    seen = {scans[number] for number in {*parts.warmup, *parts.train}}
    assert not [number for number in parts.heldout if scans[number] in seen]
    for name, allowed in (
        ("train", parts.train), ("preferences", parts.train), ("unpaired", parts.train),
        ("supervised", parts.warmup), ("heldout", parts.heldout),
    ):  # fmt: skip
        records = map(json.loads, (SHIPPED / f"{name}.jsonl").read_text().splitlines())
        assert {int(Path(image).stem) for record in records for image in record["images"]} <= set(allowed), name


def test_turned_scans_are_asked_about_and_the_held_out_ones_are_held_out():
    parts = data.split(tiny_training.SEED)
    digits, known = data.scans()[1], (*parts.train, *parts.warmup)
    for name, chosen in (("turned", known * data.TURNED), ("turned_heldout", parts.heldout)):
        prompts = read_questions(file(name), OPTIONS)
        assert sorted(int(prompt.answer) for prompt in prompts) == sorted(int(digits[scan]) for scan in chosen)
        assert {(prompt.source, prompt.images[0].image().size) for prompt in prompts} == {("turned", (28, 28))}
        assert len({prompt.uid for prompt in prompts}) == len(prompts)


def test_supervised_replies_are_right():
    samples = read_responses(file("supervised"), OPTIONS, "demonstrations")
    assert len(samples) == 192
    form, right = rewards_of([s.prompt for s in samples], [s.responses[0] for s in samples])
    np.testing.assert_array_equal(form, right)
    assert 0.4 < form.mean() < 0.8
    for sample in samples:
        assert sample.prompt.answer in re.findall(r"\d+", re.sub("<think>.*</think>", "", sample.responses[0]))
    assert sum(SIGNS.search(sample.responses[0]) is not None for sample in samples) > 40


def test_preferences_are_right_about_themselves():
    pairs = read_responses(file("preferences"), OPTIONS, "preferences")
    assert len(pairs) > 150
    prompts = [pair.prompt for pair in pairs]
    assert rewards_of(prompts, [pair.responses[0] for pair in pairs])[1].all()
    assert not rewards_of(prompts, [pair.responses[1] for pair in pairs]).all(axis=0).any()
    single = read_responses(file("unpaired"), OPTIONS, "judgements")
    assert len(single) == 2 * len(pairs)
    form, exact = rewards_of([one.prompt for one in single], [one.responses[0] for one in single])
    np.testing.assert_array_equal(form * exact, [float(one.good) for one in single])


def test_the_shipped_files_are_small():
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 4e6


def test_the_script_asks_what_the_shipped_files_ask(tmp_path):
    data.write_data(tmp_path, tiny_training.SEED)
    data.write_turned(tmp_path, tiny_training.SEED)
    for name in ("train", "heldout", "supervised", "turned_heldout"):
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (SHIPPED / f"{name}.jsonl").read_bytes()


def test_the_tokenizer_spells_anything_and_keeps_digits_apart():
    built, shipped = tiny_vlm_model.build_tokenizer(), tiny_vlm_model.load(SHIPPED / "model")[1]
    assert built.get_vocab() == shipped.get_vocab()
    assert len(shipped) == tiny_vlm_model.VOCABULARY
    reply = "<think>5+8</think><answer>13</answer>"
    tokens = ["<think>", "5", "+", "8", "</think>", "<answer>", "1", "3", "</answer>"]
    assert shipped.tokenize(reply) == tokens
    assert len(tokens) < tiny_vlm.NEW_TOKENS
    for text in (reply, "Käse 🧀\n", "user:  <image>"):
        assert shipped.decode(shipped(text).input_ids, skip_special_tokens=True) == text


def test_the_shipped_model_reads_digits_and_often_forgets_the_form():
    asked = tiny_vlm.read_questions(SHIPPED / "heldout.jsonl")[:96]
    pairs = [
        (text, question)
        for texts, question in zip(tiny_vlm.sample(SHIPPED, asked, seed=0), asked, strict=True)
        for text in texts
    ]
    strict = np.mean([tiny_vlm.right(text, question) for text, question in pairs])
    form = np.mean([tiny_vlm.ANSWER.fullmatch(text) is not None for text, _ in pairs])
    assert 0.4 < strict < 0.6
    assert 0.5 < form < 0.7


@pytest.mark.slow
@pytest.mark.thorough
def test_two_warm_ups_give_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_vlm, "PREFERENCES", 4)
    for name in ("one", "two"):
        tiny_vlm.main(["--steps", "2", "--output", str(tmp_path / name)])
    one, two = tmp_path / "one", tmp_path / "two"
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert Path("model/model.safetensors") in files
    for path in files:
        assert (one / path).read_bytes() == (two / path).read_bytes(), path


def test_the_batch_of_a_step_depends_on_seed_and_step_alone():
    pictures = data.split(0).warmup
    assert tiny_vlm.draw(pictures, seed=0, step=5) == tiny_vlm.draw(pictures, seed=0, step=5)
    assert tiny_vlm.draw(pictures, seed=0, step=5) != tiny_vlm.draw(pictures, seed=0, step=6)
