"""GenEval: its rules on hand-made boxes, its detector as mmdet reads it, and its colours, on tiny random networks."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from burnish.rewards.calls import call_reward
from burnish.types.prompt import Prompt
from tests.support.scorers import checkpoint, tiny_reward

NAME = "geneval_mask2former"


def include(name, count=1, **more):
    return {"class": name, "count": count, **more}


# worked out by hand: which relations hold between two boxes; what is found, what is wanted, the task, and the score:
# whether it is correct, or correct, strict, and Flow-GRPO's training reward
CASES = json.loads(Path(__file__).with_name("geneval.json").read_text())
WEST = (0, 0, 10, 10)


def test_the_rules_are_those_of_the_published_table():
    from burnish.rewards.images.geneval import Found, judge, kept, relations

    for first, second, expected in CASES["relations"]:
        assert relations(first, second) == set(expected), (first, second)

    def colours(found, name):
        """Of the left side of a box, which the table writes colours into."""
        return [{0: "red", 1: "blue"}[int(each.box[0]) % 2] for each in found]

    for found, wanted, task, expected in CASES["table"]:
        boxes = [Found(name, *(*more, *(0.95, WEST)[len(more) :])) for name, *more in found]
        result, _ = judge(kept(boxes, task), wanted, colours)
        if isinstance(expected, bool):
            assert result["correct"] == expected, (found, wanted)
        else:
            assert [*result.values()] == pytest.approx([*map(float, expected)]), (found, wanted)


def prompt(**record):
    record = {"tag": "single_object", "include": []} | record
    return Prompt(text="a photo", extra=json.dumps({"extra_info": record}))


@pytest.mark.parametrize(("wanted", "problem"), CASES["refused"])
def test_records_that_can_not_be_judged_are_refused_and_missing(wanted, problem):
    reward, asked = tiny_reward(NAME), prompt(**wanted)
    with pytest.raises(ValueError, match=problem):
        reward.check([asked])
    assert call_reward(reward, [noise_image()], [asked])[0].value is None


def noise_image(seed=0, height=48, width=40):
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
    from burnish.rewards.images.geneval import CLASSES, read_detections

    generator = np.random.default_rng(3)
    classes = generator.normal(0, 3, (6, 9)).astype(np.float32)
    masks = generator.normal(-1, 4, (6, 8, 12)).astype(np.float32)
    sizes = (32, 48), (30, 41), (25, 34)
    found = read_detections(torch.tensor(classes), torch.tensor(masks), *sizes)
    expected = [each for each in by_hand(classes, masks, *sizes) if each[0] > 0.2]
    assert len(expected) >= 3
    for row, (score, label, box) in enumerate(expected):
        assert found[row].score == pytest.approx(score, abs=1e-5)
        assert (found[row].name, [*found[row].box]) == (CLASSES[label], box)
    assert found[0].mask.shape == (25, 34)


def test_a_colour_is_that_of_the_texts_which_the_object_without_its_surroundings_is_most_like():
    from burnish.rewards.images.geneval import COLOURS, TEMPLATES, Found

    reward, image, found = tiny_reward(NAME, batch_size=1), noise_image(), []
    network, read, see = (kind.from_pretrained(checkpoint(NAME) / "clip") for kind in
                          (CLIPModel, AutoTokenizer, CLIPImageProcessorPil))  # fmt: skip
    means, expected = [], []
    for colour in COLOURS:
        ids = read([text.format(colour=colour, name="dog") for text in TEMPLATES], padding=True, return_tensors="pt")
        means.append(F.normalize(network.get_text_features(**ids).pooler_output, dim=-1).mean(0))
    for box in ((0.4, 0, 8.6, 20), (10, 5, 40, 48), (3, 30, 33, 40)):
        mask = np.zeros((48, 40), bool)
        mask[::2] = True
        left, top, right, bottom = map(round, box)
        crop = np.where(mask[..., None], image, 153).astype(np.uint8)[top:bottom, left:right]
        own = network.get_image_features(torch.tensor(np.stack(see([crop])["pixel_values"]))).pooler_output
        expected.append(
            COLOURS[int((torch.stack(means) / torch.stack(means).norm(dim=-1, keepdim=True) @ own[0]).argmax())]
        )
        found.append(Found("dog", 0.9, box, mask))
    _, clip, tokenizer = reward.load()
    assert reward._colours(clip, tokenizer, image, found, "dog") == expected


def test_what_is_found_is_judged_by_the_record():
    reward, dog, empty = tiny_reward(NAME), include("dog"), np.full((32, 32, 3), 128, np.uint8)
    asked = [prompt(include=[dog]), prompt(exclude=[dog]), prompt(include=[dog], exclude=[dog])]
    scores = reward([empty] * 3, asked)
    assert [each.value for each in scores] == [0.0, 1.0, 0.0]
    assert (scores[0].note, len(scores[0].numbers)) == ("0 dog, not 1", 3)
