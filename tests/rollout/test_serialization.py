"""Rollouts survive as plain data, bit for bit."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from burnish.checkpoint.snapshot import Snapshot
from burnish.rollout.serialization import deserialize, serialize
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, Features
from burnish.types.media import Media
from burnish.types.response_stats import ResponseStats
from burnish.types.rollout import Prompt, ScoredResponses, Scores
from tests.support.equality import same
from tests.support.toy_source import START, prompt_schedule, sampled, saved


def answered() -> ScoredResponses:
    """Two responses to a question with a picture, a video of frames and a file; one to a plain question."""
    picture = Media.array(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    film = Media.movie([picture, Media.array(np.zeros((2, 2), np.uint8))], fps=2.0)
    file = Media(kind="image", digest="00", path="/somewhere/picture.png")
    seeing = Prompt(text="What?", images=(picture, file), videos=(film,), answer="7", label="sum", extra='{"a": 1}')
    plain = Prompt(text="Why?")
    looked = Features({"images": torch.rand(3, 4), "image_grid": torch.tensor([[1, 3, 1]])})
    table = Encoded(
        ids=[torch.arange(5), torch.arange(2)],
        positions=[torch.arange(15).view(3, 5), torch.arange(6).view(3, 2)],
        features=[looked, Features.none()],
    )
    prompts = [seeing, seeing, plain]
    reward = torch.tensor([0.5, float("nan"), 1.0])
    return ScoredResponses(
        prompts=prompts, group=torch.tensor([0, 0, 1]), sample=torch.tensor([0, 1, 0]),
        scores=Scores(
            reward=reward, missing=reward.isnan(), components=reward[:, None], names=("exact",), weights=(1.0,),
            notes=["", "lost", "\u00e9"],
        ),
        trace=Completion(
            prompts=Gathered(table=table, index=torch.tensor([0, 0, 1])), ids=torch.arange(6).view(3, 2),
            mask=torch.ones(3, 2, dtype=torch.bool), logprob=torch.rand(3, 2),
            positions=torch.arange(6).view(3, 1, 2).expand(-1, 3, -1), length=torch.tensor([2, 2, 2]),
            finished=torch.tensor([True, False, True]), features=[Features.none()] * 3,
        ),
        greedy=torch.full((3,), torch.nan), turn_rewards=torch.zeros(3, 0), limit=2, update=3, version=1, seed=7,
        metrics={"train/dialogue/turns/mean": float("nan")}, counts={"train/dialogue/turns/mean": 0.0},
    )  # fmt: skip


@pytest.fixture(params=["pictures", "responses", "nothing"])
def rollouts(request):
    if request.param == "responses":
        return answered()
    made = sampled(prompt_schedule().request(4, 2, Counter()), START)
    return made.select([]) if request.param == "nothing" else made


def test_rollouts_come_back_bit_by_bit(rollouts):
    plain = serialize(rollouts)
    Snapshot.of(
        1, {"source": plain}, identity={}, score=None, copy=False, rank=0
    )  # which refuses what a checkpoint can't hold
    again = deserialize(saved(plain))
    same(again, rollouts)
    assert [prompt.uid for prompt in again.prompts] == [prompt.uid for prompt in rollouts.prompts]


def test_what_rows_share_is_stored_once_and_shared_again():
    rollouts = answered()
    plain = serialize(rollouts)
    again = deserialize(saved(plain))
    assert again.prompts[0] is again.prompts[1]
    assert again.prompts[0].videos[0].frames[0] is again.prompts[0].images[0]
    assert again.prompts[0].images[0].image().size == (4, 4)
    kinds = [one["kind"] for one in plain["shared"]]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"Prompt": 2, "Media": 4, "Features": 3}


def test_names_of_earlier_versions_are_still_read():
    plain = serialize(answered())
    plain["whole"]["kind"] = "Answered"
    fields = plain["whole"]["fields"]
    fields["said"] = [one | {"kind": "Said"} for one in fields.pop("stats")]
    assert isinstance(again := deserialize(saved(plain)), ScoredResponses)
    assert again.greedy.isnan().all()
    assert all(isinstance(one, ResponseStats) for one in again.stats)
    assert [prompt.text for prompt in again.prompts] == ["What?", "What?", "Why?"]


def test_media_of_earlier_versions_are_still_read():
    plain = serialize(answered())
    fields = {"images": torch.rand(3, 4), "image_grid": torch.tensor([[1, 3, 1]])}
    fields |= {"videos": torch.zeros(0, 0), "video_grid": torch.zeros(0, 3, dtype=torch.long)}
    place = next(number for number, one in enumerate(plain["shared"]) if one["kind"] == "Features")
    plain["shared"][place]["fields"] = fields
    read = deserialize(saved(plain)).trace.prompts.table.features[0]
    assert read.tensors.keys() == {"images", "image_grid"}
    assert torch.equal(read.get("images"), fields["images"])


def test_what_no_checkpoint_can_hold_is_refused():
    with pytest.raises(AssertionError, match="can't be saved"):
        serialize(dataclasses.replace(answered(), metrics={"x": {1, 2}}))
