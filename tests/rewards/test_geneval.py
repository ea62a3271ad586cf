"""GenEval: its rules on hand-made boxes, its detector as mmdet reads it, and its colours, on tiny random networks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from burnish.types.prompt import Prompt
from tests.support.scorers import checkpoint, tiny_reward

NAME = "geneval_mask2former"


def include(name, count=1, **more):
    return {"class": name, "count": count, **more}


# centres and sizes by hand: a is 10 wide and high unless it says otherwise, so that offsets shrink by 2
RELATIONS = [
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
]
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

# correct, strict, Flow-GRPO's training reward
TABLE = [
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
    ([("dog", 0.31)], {"include": [include("dog")]}, "single_object", True),
    ([("dog", 0.3)], {"include": [include("dog")]}, "single_object", False),
    ([("dog", 0.5 + i / 100) for i in range(20)], {"include": [include("dog", 17)]}, "single_object", False),
]


def test_the_rules_are_those_of_the_published_table():
    from burnish.rewards.images.geneval_rules import Found, judge, kept, relations

    for first, second, expected in RELATIONS:
        assert relations(first, second) == expected, (first, second)

    def colours(found, name):
        """Of the left side of a box, which the table writes colours into."""
        return [{0: "red", 1: "blue"}[int(each.box[0]) % 2] for each in found]

    for found, wanted, task, expected in TABLE:
        boxes = [Found(name, *(*more, *(0.95, WEST)[len(more) :])) for name, *more in found]
        result = judge(kept(boxes, task), wanted, colours)
        if isinstance(expected, bool):
            assert result.correct == expected, (found, wanted)
        else:
            assert (result.correct, result.strict, result.partial) == pytest.approx(expected), (found, wanted)


def prompt(**record):
    record = {"tag": "single_object", "include": []} | record
    return Prompt(text="a photo", extra=json.dumps({"extra_info": record}))


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"include": [include("dog")]}, ""),
        ({"include": [], "exclude": [include("dog")]}, ""),
        ({"include": "dog"}, "no list 'include'"),
        ({"include": []}, "no clause"),
        ({"include": [include("mouse")]}, "no class"),
        ({"include": [include("dog", 0)]}, "no 'count'"),
        ({"include": [include("dog", color="teal")]}, "'teal'"),
        ({"include": [include("dog", position=["left of", 0])]}, "earlier clause"),
        ({"include": [include("dog"), include("cat", position=["near", 0])]}, "earlier clause"),
    ],
)
def test_records_that_can_not_be_judged_are_refused_and_missing(wanted, problem):
    reward, asked = tiny_reward(NAME), prompt(**wanted)
    if not problem:
        reward.check([asked])
        return
    with pytest.raises(ValueError, match=problem):
        reward.check([asked])
    assert reward.verdicts([picture()], [asked])[0].value is None


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


def test_pictures_are_made_and_detections_read_by_mmdets_rule():
    from burnish.rewards.mask2former import preprocessed, read_detections

    for height, width, size in ((512, 512, (800, 800)), (100, 400, (333, 1333)), (400, 300, (1067, 800))):
        pixels, inside = preprocessed(np.full((height, width, 3), 255, np.uint8))
        assert inside == size
        assert all(side % 32 == 0 and side - own < 32 for side, own in zip(pixels.shape[-2:], size, strict=True))
        assert pixels[0, 0, size[0] - 1, size[1] - 1].item() == pytest.approx((1 - 0.485) / 0.229, abs=1e-5)
        assert pixels[0, :, size[0] :].abs().sum() == pixels[0, :, :, size[1] :].abs().sum() == 0
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


COLOURS = ["red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white"]


def nearest_colours(image, masks) -> list[str]:
    """Of benches, by transformers: the mean of three texts that is nearest to what is cut out on grey."""
    folder = checkpoint(NAME) / "clip"
    model, words = CLIPModel.from_pretrained(folder).eval(), CLIPTokenizer.from_pretrained(folder)

    def unit(x):
        x = getattr(x, "pooler_output", x).detach()
        return x / x.norm(dim=-1, keepdim=True)

    rows = []
    for colour in COLOURS:
        texts = [f"a photo of a {kind}" for kind in (f"{colour} bench", f"{colour}-colored bench", f"{colour} object")]
        read = words(texts, padding=True, return_tensors="pt")
        rows.append(unit(unit(model.get_text_features(**read)).mean(0, keepdim=True)))
    crops = []
    for mask in masks:
        high, wide = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
        crops.append(np.where(mask[..., None], image, 0x99)[high[0] : high[-1] + 1, wide[0] : wide[-1] + 1])
    pixels = CLIPImageProcessorPil.from_pretrained(folder)(
        [crop.astype(np.uint8) for crop in crops], return_tensors="pt"
    )
    seen = unit(model.get_image_features(pixel_values=pixels.pixel_values))
    return [COLOURS[i] for i in (seen @ torch.cat(rows).T).argmax(1).tolist()]


def test_what_is_found_is_judged_by_the_record_and_by_the_nearest_colour(monkeypatch):
    from burnish.rewards.images import geneval
    from burnish.rewards.images.geneval_rules import Found

    reward, dog, empty = tiny_reward(NAME), include("dog"), np.full((32, 32, 3), 128, np.uint8)
    asked = [prompt(include=[dog]), prompt(exclude=[dog]), prompt(include=[dog], exclude=[dog])]
    verdicts = reward.verdicts([empty] * 3, asked)
    assert [each.value for each in verdicts] == [0.0, 1.0, 0.0]
    assert (verdicts[0].note, len(verdicts[0].extras)) == ("0 dog, not 1", 3)

    image, found = picture(1, 90, 90), []
    for left in range(0, 25, 5):
        mask = np.zeros((90, 90), bool)
        mask[3:70, left : left + 40] = True
        mask[20:30, 30:36] = False
        found.append(Found("bench", 0.9, (left, 3.0, left + 40.0, 70.0), mask))
    colours = nearest_colours(image, [one.mask for one in found])
    assert len(set(colours)) > 1
    for one, colour in zip(found, colours, strict=True):
        monkeypatch.setattr(geneval, "detect", lambda *_, one=one: [one])
        records = [prompt(tag="colors", include=[include("bench", color=each)]) for each in COLOURS]
        values = [verdict.value for verdict in reward.verdicts([image] * len(COLOURS), records)]
        assert values == [float(each == colour) for each in COLOURS]


def test_other_detectors_are_refused(tmp_path):
    reward, folder = tiny_reward(NAME), checkpoint(NAME)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": {"0": "cat", "1": "dog"}}))
    for changed, why in (
        ({"path": str(folder / "clip")}, "is a clip"),
        ({"path": str(tmp_path)}, "2 classes"),
        ({"clip": str(tmp_path / "nothing")}, "nothing"),
    ):
        with pytest.raises(ValueError, match=why):
            replace(reward, **changed).check([])
