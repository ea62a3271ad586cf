"""GenEval: its rules on hand-made boxes, its detector as mmdet reads it, and its colours, on tiny random networks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from burnish.rewards.images import geneval
from burnish.rewards.images.geneval import cut_out
from burnish.rewards.images.geneval_rules import COLOURS, Found, judge, kept, problem_of, relations
from burnish.rewards.mask2former import CLASSES, detect, extents, load_detector, preprocessed, read_detections
from burnish.types.prompt import Prompt
from tests.support.scorers import checkpoint, tiny_reward
from tests.support.scoring import judged, judged_values

NAME = "geneval_mask2former"


def one(name, score=0.95, box=(0, 0, 10, 10)):
    return Found(name, score, box)


def colours(found, name):
    """Of the left side of a box, which the table writes colours into."""
    return [{0: "red", 1: "blue"}[int(each.box[0]) % 2] for each in found]


def verdict(found, wanted, task="single_object"):
    return judge(kept(found, task), wanted, colours)


def include(name, count=1, **more):
    return {"class": name, "count": count, **more}


# centres and sizes by hand: a is 10 wide and high unless it says otherwise, so that offsets shrink by 2
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0, 0, 10, 10), (10, 0, 20, 10), {"left of"}),  # touching: 10 - 2 = 8 of 10
        ((10, 0, 20, 10), (0, 0, 10, 10), {"right of"}),
        ((0, 0, 10, 10), (0, 10, 10, 20), {"above"}),
        ((0, 10, 10, 20), (0, 0, 10, 10), {"below"}),
        ((0, 0, 10, 10), (20, 20, 30, 30), {"left of", "above"}),  # diagonal: (20 - 2) / 28.28 = 0.636 on both
        ((0, 0, 10, 10), (4, 4, 14, 14), set()),  # diagonal and near: (4 - 2) / 5.66 = 0.354 on both
        ((0, 0, 10, 10), (7, 7, 17, 17), {"left of", "above"}),  # (7 - 2) / 9.90 = 0.505
        ((0, 0, 10, 10), (6, 6, 16, 16), set()),  # (6 - 2) / 8.49 = 0.471
        ((0, 0, 10, 10), (2, 0, 12, 10), set()),  # 2 - 2 = 0: no offset remains
        ((0, 0, 10, 10), (4, 0, 14, 10), set()),  # (4 - 2) / 4 = 0.5, which is not more
        ((0, 0, 10, 10), (5, 0, 15, 10), {"left of"}),  # (5 - 2) / 5 = 0.6
        ((0, 0, 100, 10), (40, 0, 50, 10), set()),  # its middle is 5 to the right of 45, but they shrink by 11
        ((0, 0, 10, 10), (30, 10, 40, 20), {"left of"}),  # (28, 8) of 31.6: 0.885 and 0.253
    ],
)
def test_relations(a, b, expected):
    assert relations(a, b) == expected


COUNT = {"include": [include("dog", 3)], "exclude": [include("dog", 4)]}
PAIR = {"include": [include("dog"), include("cat")]}
RED = {"include": [include("dog", 2, color="red")]}
BOTH = {"include": [include("dog", color="red"), include("cat", color="blue")]}
LEFT = {"include": [include("cat"), include("dog", position=["left of", 0])]}
LEFT_OF_RED = {"include": [include("cat", color="red"), include("dog", position=["left of", 0])]}
TWO_LEFT = {"include": [include("cat"), include("dog", 2, position=["left of", 0])]}
MANY = {"include": [include("dog", 16)], "exclude": [include("dog", 17)]}
WEST, EAST, NEAR = (0, 0, 10, 10), (30, 0, 40, 10), (32, 0, 42, 10)
RED_BOX, BLUE_BOX = (2, 0, 9, 9), (3, 0, 9, 9)


@pytest.mark.parametrize(
    ("found", "wanted", "task", "expected"),  # correct, strict, Flow-GRPO's training reward
    [
        ([], COUNT, "counting", (False, False, 0.0)),
        ([("dog",)] * 2, COUNT, "counting", (False, False, 2 / 3)),
        ([("dog",)] * 3, COUNT, "counting", (True, True, 1.0)),
        ([("dog",)] * 4, COUNT, "counting", (False, False, 2 / 3)),  # excluded
        ([("dog", 0.95)] * 3 + [("dog", 0.9)], COUNT, "counting", (True, True, 1.0)),  # 0.9 is not more than 0.9
        ([("dog",)] * 7, COUNT, "counting", (False, False, -1 / 3)),
        ([("dog",)] * 17, MANY, "counting", (True, True, 1.0)),  # 17 are there, and the limit of 16 is met first
        ([("dog",)], PAIR, "two_object", (False, False, 0.5)),
        ([("dog",), ("cat",)], PAIR, "two_object", (True, True, 1.0)),
        ([("dog",), ("dog",), ("cat",)], PAIR, "two_object", (True, False, 0.5)),  # one more than was asked for
        ([("dog", 0.9, RED_BOX)] * 2, RED, "colors", (True, True, 1.0)),
        ([("dog", 0.9, RED_BOX), ("dog", 0.8, BLUE_BOX)], RED, "colors", (False, False, 0.75)),
        ([("dog", 0.9, RED_BOX)] * 2 + [("dog", 0.8, BLUE_BOX)], RED, "colors", (True, False, 0.25)),
        ([("dog", 0.9, BLUE_BOX), ("dog", 0.8, RED_BOX), ("dog", 0.7, RED_BOX)], RED, "colors", (False, False, 0.25)),
        ([("dog", 0.9, RED_BOX), ("cat", 0.9, BLUE_BOX)], BOTH, "color_attr", (True, True, 1.0)),
        ([("dog", 0.9, BLUE_BOX), ("cat", 0.9, RED_BOX)], BOTH, "color_attr", (False, False, 0.5)),
        ([("cat", 0.9, EAST), ("dog", 0.9, WEST)], LEFT, "position", (True, True, 1.0)),
        ([("cat", 0.9, WEST), ("dog", 0.9, EAST)], LEFT, "position", (False, False, 0.75)),  # 1, 1, and 0 beside 1
        ([("dog", 0.9, WEST)], LEFT, "position", (False, False, 1 / 3)),  # no target: 0, 1, 0
        ([("cat", 0.9, EAST)], LEFT, "position", (False, False, 1 / 3)),  # 1, 0, 0
        # the most confident dog is looked at, the other is not; exactly one was asked for
        ([("cat", 0.9, EAST), ("dog", 0.9, WEST), ("dog", 0.4, NEAR)], LEFT, "position", (True, False, 1 / 3)),
        ([("cat", 0.9, EAST), ("dog", 0.4, WEST), ("dog", 0.9, NEAR)], LEFT, "position", (False, False, 1 / 3)),
        # two wanted ones must all lie so, and a target must have matched
        ([("cat", 0.9, EAST), ("dog", 0.9, WEST), ("dog", 0.9, (1, 20, 11, 30))], TWO_LEFT, "position", True),
        ([("cat", 0.9, EAST), ("dog", 0.9, WEST), ("dog", 0.9, (60, 0, 70, 10))], TWO_LEFT, "position", False),
        ([("cat", 0.9, (31, 0, 41, 10)), ("dog", 0.9, WEST)], LEFT_OF_RED, "position", False),
        ([("cat", 0.9, (32, 0, 42, 10)), ("dog", 0.9, WEST)], LEFT_OF_RED, "position", True),
    ],
)
def test_the_table(found, wanted, task, expected):
    result = verdict([one(*each) for each in found], wanted, task)
    if isinstance(expected, bool):
        assert result.correct == expected
    else:
        assert (result.correct, result.strict, result.partial) == pytest.approx(expected)


def test_counting_takes_more_confidence_and_sixteen_objects_of_a_class_count():
    found = [one("dog", 0.9), one("dog", 0.91), one("dog", 0.31), one("dog", 0.3), one("cat", 0.2)]
    assert [each.score for each in kept(found, "counting")["dog"]] == [0.91]
    assert [each.score for each in kept(found, "colors")["dog"]] == [0.91, 0.9, 0.31]
    assert "cat" not in kept(found, "colors")
    many = kept([one("dog", 0.5 + i / 100) for i in range(20)], "single_object")["dog"]
    assert [each.score for each in many] == pytest.approx([0.69 - i / 100 for i in range(16)])
    assert len(set(CLASSES)) == 80
    assert [CLASSES[i] for i in (0, 64, 65, 66)] == ["person", "computer mouse", "tv remote", "computer keyboard"]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"include": [include("dog")]}, ""),
        ({"include": [], "exclude": [include("dog")]}, ""),
        ("dog", "no list 'include'"),
        ({"include": []}, "no clause"),
        ({"include": [include("mouse")]}, "no class"),
        ({"include": [include("dog", 0)]}, "no 'count'"),
        ({"include": [include("dog", color="teal")]}, "'teal'"),
        ({"include": [include("dog", position=["left of", 0])]}, "earlier clause"),
        ({"include": [include("dog"), include("cat", position=["near", 0])]}, "earlier clause"),
    ],
)
def test_records_that_can_not_be_judged_are_named(wanted, problem):
    assert problem in problem_of(wanted)
    assert bool(problem_of(wanted)) == bool(problem)


def picture(seed=0, height=48, width=40):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def by_hand(classes, masks, padded, size, original):
    """mmdet's rule, written out: loops over queries and classes, numpy's arithmetic."""
    shares = np.exp(classes - classes.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    every = sorted(((shares[q, c], q, c) for q in range(len(shares)) for c in range(shares.shape[1] - 1)), reverse=True)
    found = []
    for share, query, label in every[:100]:
        mask = torch.nn.functional.interpolate(torch.tensor(masks[query])[None, None], padded, mode="bilinear")
        mask = mask[..., : size[0], : size[1]]
        logits = torch.nn.functional.interpolate(mask, original, mode="bilinear")[0, 0].double().numpy()
        inside = logits > 0
        score = share * (inside / (1 + np.exp(-logits))).sum() / (inside.sum() + 1e-6)
        rows, columns = np.nonzero(inside)
        box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] if len(rows) else [0, 0, 0, 0]
        found.append((score, label, box))
    return sorted(found, key=lambda each: -each[0])


def test_detections_are_read_by_mmdets_rule():
    generator = np.random.default_rng(3)
    classes = generator.normal(0, 3, (6, 9)).astype(np.float32)
    masks = generator.normal(-1, 4, (6, 8, 12)).astype(np.float32)
    sizes = (32, 48), (30, 41), (25, 34)
    found = read_detections(torch.tensor(classes), torch.tensor(masks), *sizes)
    expected = [each for each in by_hand(classes, masks, *sizes) if each[0] > 0.2]
    assert len(expected) >= 3
    for row, (score, label, box) in enumerate(expected):
        assert float(found.scores[row]) == pytest.approx(score, abs=1e-5)
        assert (int(found.labels[row]), found.boxes[row].tolist()) == (label, box)
    assert found.masks.shape[1:] == (25, 34)
    masks = torch.zeros(2, 5, 6, dtype=torch.bool)
    masks[0, 1:3, 2:5] = True
    assert extents(masks).tolist() == [[2, 1, 5, 3], [0, 0, 0, 0]]
    named = detect(load_detector(checkpoint(NAME), "float32", "cpu"), picture(), "cpu")
    assert all(each.name in CLASSES and each.mask.shape == (48, 40) for each in named)
    assert [each.score for each in named] == sorted((each.score for each in named), reverse=True)


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(512, 512, (800, 800)), (100, 400, (333, 1333)), (400, 300, (1067, 800)), (1600, 1600, (800, 800))],
)
def test_pictures_become_800_at_the_short_side_and_1333_at_most_at_the_long_one(height, width, size):
    pixels, inside = preprocessed(np.full((height, width, 3), 255, np.uint8))
    assert inside == size
    assert all(side % 32 == 0 and side - own < 32 for side, own in zip(pixels.shape[-2:], size, strict=True))
    assert pixels[0, 0, size[0] - 1, size[1] - 1].item() == pytest.approx((1 - 0.485) / 0.229, abs=1e-5)
    assert pixels[0, :, size[0] :].abs().sum() == pixels[0, :, :, size[1] :].abs().sum() == 0


def test_colours_are_those_whose_texts_are_nearest_by_an_independent_formula():
    reward, folder = tiny_reward(NAME), checkpoint(NAME) / "clip"
    model, words = CLIPModel.from_pretrained(folder).eval(), CLIPTokenizer.from_pretrained(folder)
    image, found = picture(1, 90, 90), []
    for box in [(5.0 * i, 3.0, 5.0 * i + 40, 70.0) for i in range(5)]:
        mask = np.zeros((90, 90), bool)
        mask[int(box[1]) : int(box[3]), int(box[0]) : int(box[2])] = True
        mask[20:30, 30:36] = False
        found.append(Found("bench", 0.9, box, mask))

    def unit(x):
        x = getattr(x, "pooler_output", x).detach()
        return x / x.norm(dim=-1, keepdim=True)

    rows = []
    for colour in COLOURS:
        texts = [f"a photo of a {kind}" for kind in (f"{colour} bench", f"{colour}-colored bench", f"{colour} object")]
        read = words(texts, padding=True, return_tensors="pt")
        rows.append(unit(unit(model.get_text_features(**read)).mean(0, keepdim=True)))
    grey = np.full_like(image, 0x99)
    crops = [np.where(each.mask[..., None], image, grey)[3:70, int(each.box[0]) : int(each.box[2])] for each in found]
    np.testing.assert_array_equal(cut_out(image, found[4]), crops[4])
    pixels = CLIPImageProcessorPil.from_pretrained(folder)(crops, return_tensors="pt").pixel_values
    expected = (unit(model.get_image_features(pixel_values=pixels)) @ torch.cat(rows).T).argmax(1)
    _, clip, tokens = reward.load()
    assert reward._colours(clip, tokens, image, found, "bench") == [COLOURS[i] for i in expected.tolist()]


def prompt(**record):
    record = {"tag": "single_object", "include": []} | record
    return Prompt(text="a photo", extra=json.dumps({"extra_info": record}))


def test_the_same_picture_gets_another_verdict_by_another_record(monkeypatch):
    reward, dog, empty = tiny_reward(NAME), include("dog"), np.full((32, 32, 3), 128, np.uint8)
    asked = [prompt(include=[dog]), prompt(exclude=[dog]), prompt(include=[dog], exclude=[dog])]
    verdicts = judged(reward, [empty] * 3, asked)
    assert [each.value for each in verdicts] == [0.0, 1.0, 0.0]
    assert (verdicts[0].note, len(verdicts[0].extras)) == ("0 dog, not 1", 3)
    dogs = [Found("dog", score, box, np.ones((8, 8), bool)) for score, box in ((0.9, WEST), (0.8, EAST))]
    monkeypatch.setattr(geneval, "detect", lambda *_: dogs)
    (counted,) = judged(reward, [empty], [prompt(include=[dog])])
    assert (counted.value, counted.extras) == (1.0, (0.0, 0.0, 2.0))
    (counted,) = judged(reward, [empty], [prompt(tag="counting", include=[include("dog", 2)])])
    assert (counted.value, counted.extras[2]) == (0.0, 0.0)  # counting wants more confidence


def test_prompts_without_a_record_and_other_detectors_are_refused(tmp_path):
    reward, folder = tiny_reward(NAME), checkpoint(NAME)
    for extra, why in (("", "no list 'include'"), (json.dumps({"include": [include("mouse")]}), "no class")):
        with pytest.raises(ValueError, match=why):
            reward.check([Prompt(text="a photo of a bench", extra=extra)])
        assert judged_values(reward, [picture()], [Prompt(text="x", extra=extra)]) == [None]
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": {"0": "cat", "1": "dog"}}))
    for changed, why in (
        ({"path": str(folder / "clip")}, "is a clip"),
        ({"path": str(tmp_path)}, "2 classes"),
        ({"clip": str(tmp_path / "nothing")}, "nothing"),
    ):
        with pytest.raises(ValueError, match=why):
            replace(reward, **changed).check([])
