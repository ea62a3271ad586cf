"""GenEval's rules on hand-made boxes, against a table that was worked out by hand."""

from __future__ import annotations

import pytest

from burnish.rewards.images.geneval_rules import CLASSES, Found, judge, kept, problem_of, relations


def one(name, score=0.95, box=(0, 0, 10, 10)):
    return Found(name, score, box)


def colours(found, name):
    """Of the left side of a box, which the table writes colours into."""
    return [{0: "red", 1: "blue"}[int(each.box[0]) % 2] for each in found]


def verdict(found, wanted, task="single_object"):
    judged = judge(kept(found, task), wanted, colours)
    return judged.correct, judged.strict, judged.partial


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
        ((0, 0, 10, 10), (0, 0, 10, 10), set()),
        ((0, 0, 100, 10), (40, 0, 50, 10), set()),  # its middle is 5 to the right of 45, but they shrink by 11
        ((0, 0, 10, 10), (30, 10, 40, 20), {"left of"}),  # (28, 8) of 31.6: 0.885 and 0.253
    ],
)
def test_relations(a, b, expected):
    assert relations(a, b) == expected


def test_counting_takes_more_confidence_than_the_others():
    found = [one("dog", 0.9), one("dog", 0.91), one("dog", 0.31), one("dog", 0.3), one("cat", 0.2)]
    assert [each.score for each in kept(found, "counting")["dog"]] == [0.91]
    assert [each.score for each in kept(found, "colors")["dog"]] == [0.91, 0.9, 0.31]
    assert "cat" not in kept(found, "colors")


def test_sixteen_objects_of_a_class_count_and_nothing_suppresses_what_overlaps():
    found = [one("dog", 0.5 + i / 100) for i in range(20)]
    assert [each.score for each in kept(found, "single_object")["dog"]] == pytest.approx(
        [0.69 - i / 100 for i in range(16)]
    )
    # 17 are there, and 17 are excluded: the limit is met first
    wanted = {"include": [include("dog", 16)], "exclude": [include("dog", 17)]}
    assert verdict([one("dog") for _ in range(17)], wanted, "counting") == (True, True, 1.0)


COUNT = {"include": [include("dog", 3)], "exclude": [include("dog", 4)]}
PAIR = {"include": [include("dog"), include("cat")]}
RED = {"include": [include("dog", 2, color="red")]}
BOTH = {"include": [include("dog", color="red"), include("cat", color="blue")]}
LEFT = {"include": [include("cat"), include("dog", position=["left of", 0])]}
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
    ],
)
def test_the_table(found, wanted, task, expected):
    assert verdict([one(*each) for each in found], wanted, task) == pytest.approx(expected)


def test_two_wanted_objects_must_all_lie_so():
    wanted = {"include": [include("cat"), include("dog", 2, position=["left of", 0])]}
    placed = [one("cat", box=EAST), one("dog", box=WEST)]
    assert verdict([*placed, one("dog", box=(1, 20, 11, 30))], wanted, "position")[0]
    assert not verdict([*placed, one("dog", box=(60, 0, 70, 10))], wanted, "position")[0]


def test_a_position_needs_its_target_to_have_matched():
    wanted = {"include": [include("cat", color="red"), include("dog", position=["left of", 0])]}
    blue = [one("cat", box=(31, 0, 41, 10)), one("dog", box=WEST)]
    red = [one("cat", box=(32, 0, 42, 10)), one("dog", box=WEST)]
    assert not verdict(blue, wanted, "position")[0]
    assert verdict(red, wanted, "position")[0]
    assert "nothing for dog to be left of" in judge(kept(blue, "position"), wanted, colours).why


def test_the_classes_are_the_detectors_and_three_have_names_of_their_own():
    assert len(set(CLASSES)) == 80
    assert [CLASSES[i] for i in (0, 64, 65, 66, 79)] == [
        "person", "computer mouse", "tv remote", "computer keyboard", "toothbrush",
    ]  # fmt: skip


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
