"""Ranks that split every sequence are one: the same losses and weights, whoever of them draws, scores and learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.training.lockstep import Lockstep
from burnish.training.ranks import SINGLE_RANK, Ranks, by_first
from burnish.utils.errors import Cancelled
from tests.support import rank_runs, split_runs
from tests.support.factory import tiny_flux
from tests.support.same_runs import compare

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, and what becomes of the runs that one process does alone."""
    folder = tmp_path_factory.mktemp("contexts")
    for name in ("alone", "pair", "four"):
        place = folder / name / "pipeline"
        tiny_flux(folder / name, vae=False)
        place.rename(folder / "flux")
        place.mkdir()
        (folder / "flux").rename(place / "flux")
        write(describe(rank_runs.EXPERTS), place / rank_runs.EXPERTS, 0)
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    return {name: rank_runs.alone(name, folder / "pair") for name in split_runs.NAMES}


@pytest.fixture(scope="module")
def pair(folder: Path, alone: dict[str, Any]) -> list[Any]:
    return rank_runs.together(split_runs.split_runs, folder / "pair")


@pytest.mark.parametrize("name", split_runs.NAMES)
def test_two_that_split_sequences_train_as_one(alone: dict[str, Any], pair: list[Any], name: str) -> None:
    assert alone[name]["moved"] > 3e-4, "nothing was learned, so nothing is compared"
    compare(pair[0][name], alone[name])
    for key, value in pair[0][name]["weights"].items():
        assert torch.equal(pair[1][name]["weights"][key], value), key


def test_each_has_half_of_every_sequence(folder: Path, pair: list[Any]) -> None:
    assert split_runs.tokens_seen(folder / "pair" / "pipeline", SINGLE_RANK) == {16, 8}
    assert [found["tokens"] for found in pair] == [{8, 4}, {8, 4}]
    alone = split_runs.activations(folder / "pair" / "pipeline", SINGLE_RANK)
    for found in pair:
        assert 0.4 < found["bytes"] / alone < 0.6


def test_gradients_in_half_precision_differ_by_rounding(folder: Path, pair: list[Any]) -> None:
    expected = split_runs.gradients_in_half(folder / "pair" / "pipeline", SINGLE_RANK)
    size = torch.cat([value.flatten() for value in expected.values()]).norm()
    for found in (one["half"] for one in pair):
        assert found.keys() == expected.keys()
        apart = torch.cat([(found[name] - value).flatten() for name, value in expected.items()])
        assert apart.norm() < 0.01 * size


@pytest.mark.parametrize("name", rank_runs.SPLIT_RESUMED)
def test_they_go_on_from_the_checkpoint_of_one_and_it_from_theirs(
    folder: Path, alone: dict[str, Any], pair: list[Any], name: str
) -> None:
    expected = alone[name] | {"metrics": alone[name]["metrics"][rank_runs.SAVED :]}
    compare(pair[0][f"{name}, resumed"], expected)
    compare(rank_runs.resume(name, folder / "pair" / "pipeline", SINGLE_RANK, folder / "pair", size=2), expected)


@pytest.mark.thorough
def test_two_groups_of_two_train_as_one(folder: Path, alone: dict[str, Any]) -> None:
    four = rank_runs.together(split_runs.trained, folder / "four", size=4)
    for name, expected in alone.items():
        compare(four[0][name], expected)


def agreed(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """What becomes of work in step where the second of two ranks stops it, or fails in it."""
    ranks, found, done = ranks.in_contexts(2), {}, []
    first = ranks.context.rank == 0

    def work(*, stop: int, fail: int, forwards: int = 3) -> str:
        done.clear()

        def check_cancelled() -> None:
            if not first and len(done) == stop:
                raise Cancelled

        try:
            with Lockstep(ranks.context) as step:
                for number in range(forwards):
                    if not first and number == fail:
                        raise ValueError
                    with step.forward(check_cancelled):
                        done.append(ranks.context.max(number))
                if not first and fail == forwards:
                    raise ValueError
        except (Cancelled, ValueError) as error:
            return f"{type(error).__name__} after {len(done)}"
        return f"{len(done)}"

    found["all"] = work(stop=9, fail=9)
    found["stopped"] = work(stop=1, fail=9)
    found["failed before"] = work(stop=9, fail=0)
    found["failed between"] = work(stop=9, fail=2)
    found["failed after"] = work(stop=9, fail=3)

    def cancelled() -> None:
        raise Cancelled

    try:
        by_first(ranks.context, cancelled)
    except Cancelled:
        found["score"] = by_first(ranks.context, lambda: ranks.rank)
    return found | {"rows": ranks.rows.size, "barrier": ranks.sum({"ranks": 1.0})["ranks"]}


def test_ranks_in_step_stop_together(tmp_path: Path) -> None:
    first, second = rank_runs.together(agreed, tmp_path, deadline=120)
    assert {first[key] == second[key] for key in ("all", "stopped", "score", "rows", "barrier")} == {True}
    assert (first["all"], first["stopped"], first["score"], first["rows"]) == ("3", "Cancelled after 1", 0, 1)
    for what, count in (("before", 0), ("between", 2), ("after", 3)):
        assert first[f"failed {what}"] == f"Cancelled after {count}"
        assert second[f"failed {what}"] == f"ValueError after {count}"
