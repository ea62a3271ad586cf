"""Code of the user that chooses the records of every batch, by what was rewarded so far."""

import pytest
import torch

from burnish.data.sampler import History
from burnish.data.stream import PromptStream
from burnish.types.prompt import Prompt
from burnish.types.rollout import Rollouts, Scores
from burnish.utils.errors import UserError

CODE = '''
import random


def worst_first(records, history, update, count, seed):
    """Prompts that were never drawn, then those that went worst; ties by chance."""
    draw = random.Random(seed)
    order = sorted(range(len(records)), key=lambda row: (history[row][-1] if history[row] else -9.0, draw.random()))
    return order[:count]


def few(records, history, update, count, seed):
    return [0] * (count - 1)


def out(records, history, update, count, seed):
    return [0] * (count - 1) + [len(records)]


def texts(records, history, update, count, seed):
    return [record.text for record in records][:count]


def other(records, history):
    return [0]


def broken(records, history, update, count, seed):
    raise RuntimeError("no luck")
'''
PROMPTS = [Prompt(text=f"prompt {i}") for i in range(6)]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    return str(tmp_path / "mine.py")


def stream(path, name="worst_first", batch=2):
    return PromptStream(PROMPTS, batch, seed=5, shuffle=True, sampler=f"{path}:{name}")


def sampled(prompts, rewards, update):
    """Two samples of each prompt; a reward that is None is missing."""
    flat = [one for pair in rewards for one in pair]
    missing = torch.tensor([one is None for one in flat])
    scores = Scores(
        components=torch.tensor([[one or 0.0] for one in flat]), reward=torch.tensor([one or 0.0 for one in flat]),
        missing=missing, weights=(1.0,), names=("r",), notes=[""] * len(flat),
    )  # fmt: skip
    group = torch.arange(len(prompts)).repeat_interleave(2)
    return Rollouts(
        prompts=[one for one in prompts for _ in range(2)], group=group, sample=torch.zeros(len(flat)).long(),
        scores=scores, update=update, version=update - 1, seed=0,
    )  # fmt: skip


def test_history_holds_means_of_updates_up_to_a_version():
    history = History()
    history.add(1, sampled(PROMPTS[:2], [(0.0, 1.0), (None, None)], 1))
    history.add(3, sampled(PROMPTS[:1], [(1.0, None)], 3))
    uids = [one.uid for one in PROMPTS[:3]]
    assert history.of(uids, 2) == [[0.5], [], []], "a group without a reward says nothing"
    assert history.of(uids, 3) == [[0.5, 1.0], [], []]
    assert history.of(uids, 0) == [[], [], []], "earlier versions see less"
    again = History()
    again.load(history.state())
    assert again.of(uids, 9) == [[0.5, 1.0], [], []]
    again.load(history.state(last=2))
    assert again.of(uids, 9) == [[0.5], [], []]
    again.load(None)
    assert again.of(uids, 9) == [[], [], []]


def run(found, updates):
    """Draw and reward: prompt i is worth i on average."""
    drawn = []
    for update in updates:
        batch = found.next_batch(update, update - 1)
        drawn.append([one.text for one in batch])
        worth = [float(one.text[-1]) for one in batch]
        found.sampler.history.add(update, sampled(batch, [(one - 1, one + 1) for one in worth], update))
    return drawn


def state(found):
    return found.state_dict() | {"history": found.sampler.history.state()}


def test_a_curriculum_sees_rewards_and_resumes_as_if_nothing_had_happened(path):
    whole = stream(path)
    first = run(whole, range(1, 4))
    assert sorted(text for batch in first for text in batch) == [one.text for one in PROMPTS]
    saved = state(whole)
    rest = run(whole, range(4, 8))
    assert rest == [["prompt 0", "prompt 1"]] * 4, "those that went worst"
    resumed = stream(path)
    run(resumed, range(1, 3))
    resumed.load_state_dict(saved)
    assert run(resumed, range(4, 8)) == rest
    assert run(stream(path), range(1, 4)) == first


def test_what_is_not_rewarded_yet_is_not_seen(path):
    """Where sampling runs ahead, rewards of updates behind the sampling weights are all that counts."""
    found = stream(path)
    run(found, range(1, 4))
    position = found.position
    late = [one.text for one in found.next_batch(5, 2)]
    found.position = position
    found.sampler.history.add(3, sampled(PROMPTS, [(9.0, 9.0)] * 6, 3))
    assert [one.text for one in found.next_batch(5, 2)] == late


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("few", r"must return 2 numbers of records from 0 to 5, but returned 1 of them at update 1; mend it"),
        ("out", r"must return 2 numbers of records from 0 to 5, but returned 6 among them"),
        ("texts", r"but returned 'prompt 0' among them"),
        ("other", r"is called as function\(records=..., history=..., .* which it doesn"),
        ("broken", r"fails at update 1: RuntimeError: no luck \(.*mine.py:\d+, in broken\); mend it"),
        ("absent", r"path of sampler is '.*absent', but absent has no such name"),
    ],
)
def test_what_a_sampler_does_wrong_is_told(path, name, why):
    with pytest.raises(UserError, match=why):
        stream(path, name).next_batch(1, 0)


def test_another_sampler_is_refused_on_resume(path):
    with pytest.raises(UserError, match=r"data\.mix or data\.sampler"):
        stream(path, "few").load_state_dict(state(stream(path)))
