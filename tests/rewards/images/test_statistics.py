"""Watched statistics by their closed forms, and that watching changes nothing."""

import math

import numpy as np
import pytest
import torch

from burnish.options import ScoringOptions
from burnish.registry import lookup
from burnish.rewards.given import Given
from burnish.rewards.judging import judge
from burnish.rewards.scoring import Scorer
from burnish.types.clips import Clip
from burnish.types.prompt import Prompt

PROMPT = Prompt(text="a")


def value(name: str, picture: np.ndarray, **options) -> float:
    (verdict,) = judge(lookup("flow reward", name)(**options), [picture], [PROMPT])
    return verdict.value


def flat(*colour: int, size: int = 8) -> np.ndarray:
    return np.full((size, size, 3), colour, dtype=np.uint8)


def halves(one: tuple[int, ...], other: tuple[int, ...]) -> np.ndarray:
    picture = flat(*one)
    picture[:, 4:] = other
    return picture


CHESS = np.where((np.indices((8, 8)).sum(0) % 2)[..., None], 255, 0).repeat(3, -1).astype(np.uint8)
COLOURS = np.stack(np.meshgrid(*[np.arange(8) * 32] * 3), -1).reshape(16, 32, 3).astype(np.uint8)


@pytest.mark.parametrize(
    ("name", "picture", "expected"),
    [
        ("dark_share", flat(0, 0, 0), 1.0),
        ("dark_share", halves((20, 20, 20), (40, 40, 40)), 0.5),
        ("dark_share", flat(0, 0, 255), 0.0),  # blue has luminance 0.114
        ("brightness", halves((0, 0, 0), (255, 255, 255)), 0.5),
        ("brightness", flat(0, 0, 255), 0.114),
        ("high_frequency", CHESS, 1.0),
        ("high_frequency", flat(9, 9, 9), 0.0),
        ("high_frequency", halves((0, 0, 0), (255, 255, 255)), 0.0),  # the edge lies between cells
        ("high_frequency", CHESS[:1], 0.0),  # too small to be halved
        ("edge_density", flat(9, 9, 9), 0.0),
        ("edge_density", CHESS, 1.0),
        ("edge_density", halves((0, 0, 0), (255, 255, 255)), 8 / 112),  # 8 pairs of 2 x 8 x 7
        ("edge_density", flat(9, 9, 9, size=1), 0.0),
        ("colour_entropy", flat(7, 200, 31), 0.0),
        ("colour_entropy", halves((0, 0, 0), (255, 0, 0)), 1 / 9),
        ("colour_entropy", COLOURS, 1.0),
        ("saturation", flat(90, 90, 90), 0.0),
        ("saturation", flat(255, 0, 10), 1.0),
        ("saturation", halves((0, 0, 0), (200, 100, 150)), 0.25),
    ],
)
def test_closed_forms(name, picture, expected):
    assert value(name, picture) == pytest.approx(expected, abs=1e-6)


def test_noise_loses_three_quarters_of_its_contrast_at_half_its_size():
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 1), dtype=np.uint8).repeat(3, 2)
    assert value("high_frequency", noise) == pytest.approx(0.75, abs=0.01)


def test_the_size_of_a_file_goes_by_what_is_in_a_picture_and_not_by_its_own():
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    assert value("file_size", noise) == pytest.approx(value("file_size", noise[:128]), rel=0.05)
    assert value("file_size", flat(9, 80, 200, size=256)) < 0.3 < 5 < value("file_size", noise)


def test_options_move_what_is_dark_and_what_is_an_edge():
    assert value("dark_share", flat(40, 40, 40), below=0.2) == 1.0
    assert value("edge_density", CHESS, more=1.0) == 0.0


def test_the_norm_of_latents_is_that_of_what_the_network_drew():
    given = Given(inputs={"latents": [np.full((4, 2, 2), 3.0, np.float32), np.array([[[3.0, 4.0]]], np.float32)]})
    found = judge(lookup("flow reward", "latent_norm")(), [flat(0, 0, 0)] * 2, [PROMPT] * 2, given)
    assert [one.value for one in found] == pytest.approx([3.0, math.sqrt(12.5)])


def test_distinctness_is_the_distance_from_the_mean_of_a_prompts_samples():
    pictures = [flat(0, 0, 0), flat(255, 255, 255), flat(51, 51, 51), flat(0, 0, 0)]
    prompts = [PROMPT, PROMPT, Prompt(text="b"), PROMPT]
    found = judge(lookup("flow reward", "distinctness")(), pictures, prompts)
    assert [one.value for one in found] == [pytest.approx(1 / 3), pytest.approx(2 / 3), None, pytest.approx(1 / 3)]
    assert not found[2].asked
    clips = [Clip(frames=np.stack([picture] * 3), fps=8) for picture in pictures[:2]]
    assert [one.value for one in judge(lookup("flow reward", "distinctness")(), clips, [PROMPT] * 2)] == [0.5, 0.5]


def test_watching_changes_no_reward():
    names = (
        "brightness", "dark_share", "edge_density", "high_frequency", "file_size", "colour_entropy", "saturation",
        "latent_norm", "distinctness",
    )  # fmt: skip
    pictures, prompts = [CHESS, flat(9, 80, 200)], [PROMPT] * 2
    given = Given(inputs={"latents": [np.ones(3, np.float32)] * 2})
    plain = {"size": lookup("flow reward", "jpeg_compressibility")()}
    watched = plain | {name: lookup("flow reward", name)(weight=0.0) for name in names}
    one, other = (
        Scorer(some, ScoringOptions(processes=0)).score(pictures, prompts, given) for some in (plain, watched)
    )
    assert torch.equal(one.reward, other.reward)
    assert torch.equal(one.missing, other.missing)
    assert one.notes == other.notes
    assert not other.components.isnan().any()
