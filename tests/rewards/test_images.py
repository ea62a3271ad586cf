"""Rewards that look at pixels alone, read text, or follow what moves: published values, closed forms, and gradients."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from burnish.rewards.base import Score
from burnish.types.prompt import Prompt
from burnish.types.samples import Clip
from tests.conformance import case
from tests.support.asked import flow_reward
from tests.support.asked import values_of as values
from tests.support.drawing import line, noise, scene

PROMPT = Prompt(text="a")


def value(name: str, image: np.ndarray, **options) -> float | None:
    return values(flow_reward(name, **options), [image], [PROMPT])[0]


def as_tensor(*images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255


def flat(*colour: int, size: int = 8) -> np.ndarray:
    return np.full((size, size, 3), colour, dtype=np.uint8)


def halves(one: tuple[int, ...], other: tuple[int, ...]) -> np.ndarray:
    image = flat(*one)
    image[:, 4:] = other
    return image


def framed(width: int, colour=(0, 0, 0)) -> np.ndarray:
    image = np.full((10, 12, 3), 255, dtype=np.uint8)
    image[:] = colour
    image[width:-width, width:-width] = 255
    return image


CHESS = np.where((np.indices((8, 8)).sum(0) % 2)[..., None], 255, 0).repeat(3, -1).astype(np.uint8)
GREY_NOISE = np.random.default_rng(0).integers(0, 256, (256, 256, 1), dtype=np.uint8).repeat(3, 2)
BLACK_AND_WHITE = halves((0, 0, 0), (255, 255, 255))
CORNERS = np.full((3, 3, 3), 255, dtype=np.uint8)
CORNERS[[0, 2], [0, 2]] = 0


@pytest.mark.parametrize(("name", "image", "options", "expected"), [
    ("border_darkness", framed(1), {}, 1),
    ("border_darkness", CORNERS, {}, 2 / 8),
    ("border_darkness", framed(1, (255, 0, 0)), {}, 1 - 0.299),
    ("dark_share", halves((20, 20, 20), (40, 40, 40)), {}, 0.5),
    ("dark_share", flat(0, 0, 255), {}, 0),  # blue has luminance 0.114
    ("brightness", flat(0, 0, 255), {}, 0.114),
    ("high_frequency", CHESS, {}, 1), ("high_frequency", flat(9, 9, 9, size=1), {}, 0),
    ("edge_density", BLACK_AND_WHITE, {}, 8 / 112),  # 8 pairs of 2 x 8 x 7
    ("colour_entropy", halves((0, 0, 0), (255, 0, 0)), {}, 1 / 9),
    ("saturation", halves((0, 0, 0), (200, 100, 150)), {}, 0.25),
])  # fmt: skip
def test_closed_forms(name, image, options, expected):
    assert value(name, image, **options) == pytest.approx(expected, abs=1e-6)


def test_sizes_of_files_are_the_published_ones_and_go_by_what_is_in_a_image():
    published = case("rewards", "reward/jpeg")
    assert "arange(3*32*32)" in published.inputs["image_formula"]
    image = (np.arange(3 * 32 * 32).reshape(3, 32, 32) * 7 % 256).astype(np.uint8).transpose(1, 2, 0)
    published.close(value("jpeg_compressibility", image), published.expected["score"])
    published.close(value("jpeg_compressibility", flat(128, 128, 128, size=32)), published.expected["flat_image_score"])
    assert value("jpeg_incompressibility", image) == -value("jpeg_compressibility", image)
    assert value("file_size", flat(9, 80, 200, size=256)) < 0.3 < 5 < value("file_size", noise(0, 256, 256))
    # noise loses three quarters of its contrast at half its size
    assert value("high_frequency", GREY_NOISE) == pytest.approx(0.75, abs=0.01)


def test_distinctness_is_the_distance_from_the_mean_of_the_prompt_s_samples():
    images = [flat(0, 0, 0), flat(255, 255, 255), flat(51, 51, 51), flat(0, 0, 0)]
    apart = flow_reward("distinctness")(images, [PROMPT, PROMPT, Prompt(text="b"), PROMPT])
    third = pytest.approx(1 / 3)
    assert [one.value for one in apart] == [third, pytest.approx(2 / 3), None, third]
    assert not apart[2].applicable


DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


def moving(places, *, ink: int = 0, paper: int = 255, grain: int = 0) -> Clip:
    frames = np.full((len(places), 32, 32, 3), paper, np.int64)
    for frame, (x, y) in zip(frames, places, strict=True):
        frame[y : y + 4, x : x + 4] = ink
    frames += np.random.default_rng(0).integers(-grain, grain + 1, frames.shape)
    return Clip(frames=frames.clip(0, 255).astype(np.uint8), fps=8.0)


def way(x: int, y: int, frames: int = 9):
    return [(14 + x * i, 14 + y * i) for i in range(frames)]


def motion(clip: Clip, asked):
    prompt = asked if isinstance(asked, Prompt) else Prompt(text="it", extra=json.dumps({"direction": asked}))
    return flow_reward("motion")([clip], [prompt])[0]


def test_motion_is_the_share_of_the_way_in_the_wanted_direction():
    for direction, asked in itertools.product(DIRECTIONS, DIRECTIONS):
        score = motion(moving(way(*DIRECTIONS[direction])), asked)
        right = float(asked == direction)
        assert (score.value, score.numbers) == (pytest.approx(right, abs=1e-6), {"agrees": right})
    assert motion(moving(way(1, 1)), "right").value == pytest.approx(2**-0.5, rel=1e-5)
    assert motion(moving(way(0, 1, frames=4)), "down").value == pytest.approx(3 / 4.8, rel=1e-5)
    assert motion(moving(way(0, 0)), "left").value == 0
    for changed in (moving(way(1, 0), ink=255, paper=0), moving(way(1, 0), paper=200, ink=40, grain=8)):
        assert motion(changed, "right").value == pytest.approx(1, abs=0.02)


def test_the_direction_is_the_record_s_or_the_only_one_of_the_text():
    left = moving(way(-1, 0))
    for prompt in (Prompt(text="It moves LEFT."), Prompt(text="right, then left", extra='{"direction": "left"}')):
        assert motion(left, prompt).value == pytest.approx(1)
    one = flow_reward("motion")
    assert not one.applies_to(Prompt(text="right, then left"))
    assert (one.unfit(prompt), "'north'" in one.unfit(Prompt(text="it", extra='{"direction": "north"}'))) == ("", True)
    assert motion(moving(way(1, 0), ink=255), "right") == Score(0.0, "a frame shows nothing to follow", {"agrees": 0.0})


NUMBERS = ["472", "010", "950", "407", "186", "333"]


def read(images, *answers: str, **options):
    prompts = [Prompt(text=f"the number {answer}", answer=answer) for answer in answers]
    return flow_reward("ocr", **options)(images, prompts)


def test_what_is_written_beside_the_answer_costs_and_published_scores_are_those_of_substrings():
    from burnish.rewards.images.ocr import similarity

    published = case("rewards", "reward/ocr_levenshtein")
    pairs = published.inputs["pairs(text,gt)"]
    published.close([similarity(*pair, substring=True) for pair in pairs], published.expected["scores"])
    texts = ("472", "4720", "471472473")
    assert [similarity(text, "472", substring=False) for text in texts] == [1, pytest.approx(2 / 3), 0]


def test_ocr_reads_what_is_drawn_whatever_it_is():
    scores = read([line(number) for number in NUMBERS], *NUMBERS)
    assert [(one.note, one.value, one.numbers["exact"]) for one in scores] == [(number, 1.0, 1.0) for number in NUMBERS]
    near, far = read([line("473"), line("985")], "472", "472")
    assert (near.value, near.numbers["exact"], far.value) == (pytest.approx(2 / 3), 0, 0)
    junk = [np.full((16, 32, 3), 255, np.uint8), noise(0), *[np.zeros((*shape, 3), np.uint8)
            for shape in ((1, 1), (200, 2), (2, 200))]]  # fmt: skip
    assert [one.value for one in read(junk, *["472"] * 5)] == [0.0] * 5
    scenes = [scene("OPEN"), np.full((64, 64, 3), 128, dtype=np.uint8)]
    assert [(one.value, one.note) for one in read(scenes, "open", "open", detect=True)] == [(1.0, "OPEN"), (0.0, "")]


def test_ctc_is_the_sum_over_all_alignments():
    from burnish.rewards.images.ocr import log_likelihood

    columns, characters = 5, 3
    logprob = np.log(np.random.default_rng(0).dirichlet(np.ones(characters), columns))
    for answer in ([1], [1, 2], [1, 1], [2, 2, 1]):
        total = sum(
            math.exp(sum(logprob[t, code] for t, code in enumerate(path)))
            for path in itertools.product(range(characters), repeat=columns)
            if [code for code, _ in itertools.groupby(path) if code] == answer
        )
        assert log_likelihood(logprob, answer) == pytest.approx(math.log(total) / len(answer))
    assert log_likelihood(logprob[:2], [1, 2, 1]) == -math.inf


def poster(text: str, top: int) -> np.ndarray:
    """A square image with one line of text across it: squeezed as a whole it would have 6 columns."""
    image = np.full((256, 256, 3), 255, np.uint8)
    image[top : top + 64] = line(text, width=256, height=64)
    return image


def test_reading_has_the_same_value_and_a_gradient_that_finite_differences_confirm():
    reward = flow_reward("ocr_ctc")
    small = [line(text, width=96, height=48) for text in ("472", "985", "985")]
    images = [*small, poster("Burn", 40), poster("Burn", 150), poster("Bum", 40)]
    prompts = [Prompt(text="", answer=answer) for answer in ("472", "985", "986", "Burn", "Burn", "Burn")]
    found = values(reward, images, prompts)
    assert found[1] > -0.2 > found[2]
    assert min(found[3:5]) > -0.3 > found[5]
    same = torch.cat([reward.differentiable(as_tensor(p), [q]) for p, q in zip(images, prompts, strict=True)])
    torch.testing.assert_close(same, torch.tensor(found), rtol=1e-2, atol=1e-3)

    image = as_tensor(line("473", width=64, height=32)).clamp(0.1, 0.9).requires_grad_()
    (gradient,) = torch.autograd.grad(reward.differentiable(image, prompts[:1]).sum(), image)
    step = 5e-4 * gradient / gradient.norm()
    with torch.no_grad():
        rise = reward.differentiable(image + step, prompts[:1]) - reward.differentiable(image - step, prompts[:1])
    assert float(rise) == pytest.approx(2 * float((gradient * step).sum()), rel=0.05)

    dark = flow_reward("border_darkness").differentiable(as_tensor(small[0]), [PROMPT])
    assert float(dark) == pytest.approx(value("border_darkness", small[0]), abs=1e-6)


def test_text_that_can_never_be_read_is_refused_at_the_start_and_missing_later():
    from burnish.rewards.images.ocr import NO_ANSWER

    reward, prompt = flow_reward("ocr_ctc"), Prompt(text="so long", answer="z" * 40)
    with pytest.raises(ValueError, match=r"'so long'.* 40 characters.* 64 x 64"):
        reward.check_size([prompt], 64, 64)
    (score,) = reward([np.zeros((64, 64, 3), np.uint8)], [prompt])
    assert (score.value, "40 characters" in score.note) == (None, True)
    assert [reward.unfit(Prompt(text="", answer=answer)) for answer in ("a", None, "1ф")] == [
        "", NO_ANSWER, "the recognition model lacks the character 'ф' of its answer"
    ]  # fmt: skip
