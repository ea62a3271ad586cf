"""In which order records are drawn: by the seed, in shares, by code of the user; and how a run goes on in it."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest
import torch

from burnish.data.order import limited
from burnish.data.sampler import History
from burnish.data.stream import PromptStream
from burnish.types.media import Media
from burnish.types.packed import Prompts
from burnish.types.prompt import Prompt
from burnish.types.rollout import Rollouts, Scores
from burnish.utils import random
from tests.support.records import write
from tests.support.shown import ROOT, blocks


def stream(count=7, batch=3, seed=0, shuffle=True, **more):
    return PromptStream([Prompt(text=f"prompt {i}") for i in range(count)], batch, seed=seed, shuffle=shuffle, **more)


def mixed(weights=(2.0, 1.0, 1.0), sizes=(5, 3, 20), **more):
    items = [Prompt(text=f"{part}-{i}", part=part) for part, size in enumerate(sizes) for i in range(size)]
    parts = [item.part for item in items]
    return PromptStream(items, 4, **({"seed": 0, "shuffle": True} | more), mix=(parts, weights))


def texts(found, batches):
    return [prompt.text for _ in range(batches) for prompt in found.next_batch()]


def test_every_epoch_has_every_prompt_once_in_a_new_order_of_the_seed():
    found = texts(stream(), 7)
    epochs = [found[start : start + 7] for start in (0, 7, 14)]
    for epoch, order in enumerate(epochs):
        assert order == [f"prompt {i}" for i in random.permutation(7, 0, "data", epoch)]
        assert sorted(order) == [f"prompt {i}" for i in range(7)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert texts(stream(seed=1), 4) == texts(stream(seed=1), 4) != texts(stream(seed=2), 4)
    assert texts(stream(4, shuffle=False), 4) == [f"prompt {i % 4}" for i in range(12)]


@pytest.mark.parametrize(("count", "batch"), [(1, 4), (5, 5), (10, 9)])
def test_batches_are_always_full_and_no_prompt_is_left_out(count, batch):
    found = stream(count, batch)
    drawn = [found.next_batch() for _ in range(count)]
    assert {len(one) for one in drawn} == {batch}
    assert Counter(prompt.text for one in drawn for prompt in one) == {f"prompt {i}": batch for i in range(count)}


@pytest.mark.parametrize("make", [stream, lambda: stream(shuffle=False), mixed])
@pytest.mark.parametrize("taken", [0, 1, 3, 7])
def test_a_resumed_stream_goes_on_as_if_nothing_had_happened(taken, make):
    whole, resumed = make(), make()
    texts(whole, taken)
    saved = whole.state_dict()
    texts(resumed, 2)  # it has already been somewhere else
    resumed.load_state_dict(saved)
    assert texts(resumed, 9) == texts(whole, 9)
    assert saved != whole.state_dict(), "it was a snapshot"


def test_another_batch_size_goes_on_with_the_prompts_not_yet_seen():
    whole, resumed = stream(batch=2), stream(batch=5)
    first = texts(whole, 1)
    resumed.load_state_dict(whole.state_dict())
    assert sorted(first + texts(resumed, 1)) == sorted(f"prompt {i}" for i in range(7))


def test_what_comes_next_is_known_and_taking_it_changes_nothing():
    for mix in (None, ([i % 2 for i in range(7)], [1.0, 3.0])):
        plain, peeking, again = (stream(seed=4, mix=mix) for _ in range(3))
        for _ in range(4):
            next_ones = peeking.peek(2)
            assert peeking.next_batch() == plain.next_batch() == next_ones[:3]
        state = peeking.state_dict()
        peeking.peek()
        assert peeking.state_dict() == state
        again.peek()
        again.load_state_dict(state)
        assert again.next_batch() == plain.next_batch()


ORDER = "data.shuffle, seed, data.mix or data.sampler"


def mended(*changes, count=8):
    """A stream over prompts some of which are changed, or taken out where the change is None."""
    written = {i: f"prompt {i}" for i in range(count)} | dict(changes)
    items = [Prompt(text=text, where=f"data.jsonl:{i + 1}") for i, text in written.items() if text is not None]
    return PromptStream(items, 3, seed=0, shuffle=True)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (stream(), stream(count=8), "had 7 records at the checkpoint and has 8 now, and 0 of the former"),
        (stream(), stream(seed=1), ORDER), (stream(), stream(shuffle=False), ORDER),
        (mixed(), mixed((1.0,) * 3), ORDER),
        (stream(), PromptStream([Prompt(text=f"prompt {6 - i}") for i in range(7)], 3, seed=0, shuffle=True), "6 of 7"),
        (stream(), PromptStream([Prompt(text=f"prompt {i}", answer="a") for i in range(7)], 3, seed=0, shuffle=True),
         "7 of 7"),
        (mixed(), mixed(sizes=(6, 2, 20)), ORDER), (mixed(), mixed(sizes=(5, 3, 19)), ORDER),
        (mended(), mended(*((i, f"other {i}") for i in range(5))), "5 of 8 .* have changed: data.jsonl:1"),
        (mended(), mended(*((i, None) for i in range(5))), "has 3 now, and 5 of the former are gone"),
        (mended(), mended(count=9), "has 9 now"),
    ],
)  # fmt: skip
def test_a_run_does_not_go_on_with_other_data(before, now, said):
    with pytest.raises(ValueError, match=f"^cannot resume: .*{said}"):
        now.load_state_dict(before.state_dict())


def test_a_run_goes_on_where_it_was_after_records_were_changed_and_names_them(caplog):
    before = mended()
    texts(before, 2)
    whole = texts(before, 4)
    before.position = 6
    after = mended((2, "mended"), (5, "mended too"))
    after.load_state_dict(before.state_dict())
    changed = {"prompt 2": "mended", "prompt 5": "mended too"}
    assert texts(after, 4) == [changed.get(text, text) for text in whole]
    assert "2 of 8 training records have changed since the checkpoint: data.jsonl:3, data.jsonl:6;" in caplog.text
    before = mended()
    texts(before, 5)  # 15 records: 7 of the second epoch
    fewer = mended((1, None), (6, None))
    fewer.load_state_dict(before.state_dict())
    assert fewer.position == 6 + 6  # the second epoch of six is over with six
    assert sorted(texts(fewer, 2)) == sorted(prompt.text for prompt in fewer.items)
    assert "had 8 records at the checkpoint and have 6 now; removed or changed: record 2, record 7." in caplog.text


@pytest.mark.parametrize("weights", [(2.0, 1.0, 1.0), (0.1, 0.2, 0.7), (5.0, 1e-3, 1.0)])
def test_every_stretch_of_a_mixture_has_the_shares(weights):
    found = texts(mixed(weights), 100)
    for length in (4, 16, 100, 400):
        counts = Counter(int(text[0]) for text in found[:length])
        for part, weight in enumerate(weights):
            assert abs(counts[part] - length * weight / sum(weights)) <= 1.0001


def test_every_list_has_an_order_and_epochs_of_its_own(tmp_path):
    found = [text for text in texts(mixed(), 40) if text[0] == "0"]
    for start in range(0, 40, 5):
        assert sorted(found[start : start + 5]) == [f"0-{i}" for i in range(5)]
    assert found[:5] != found[5:10]
    alone = [text for text in texts(mixed((2.0, 1.0), (5, 3)), 40) if text[0] == "0"]
    assert alone[:20] == found[:20], "another list changes nothing about the order of this one"
    plain = [text for text in texts(mixed(shuffle=False), 20) if text[0] == "1"]
    assert plain[:6] == ["1-0", "1-1", "1-2"] * 2
    with pytest.raises(ValueError, match=r"train_files\[1\]"):
        mixed(sizes=(2, 0, 3))


def test_a_part_of_the_records_is_drawn_by_the_seed_alone():
    items = [f"record {i}" for i in range(100)]
    some = limited(items, 10, seed=3, shuffle=True)
    assert some == limited(items, 10, seed=3, shuffle=True) != limited(items, 10, seed=4, shuffle=True)
    assert len(set(some)) == 10
    assert some == [one for one in items if one in some], "their order is kept"
    assert limited(items, 10, seed=3, shuffle=False) == items[:10]
    assert limited(items, 200, seed=3, shuffle=True) == limited(items, None, seed=3, shuffle=True) == items


def test_many_prompts_take_little_more_time_and_memory_than_their_texts(tmp_path):
    """Counted in calls, so that a million of them could be streamed."""
    from burnish.data.language.prompts import read_questions
    from burnish.options.language import LanguageDataOptions

    count = 1000
    file = write(
        tmp_path / "many.jsonl", *({"prompt": f"what is {i} + 1?", "answer": str(i + 1)} for i in range(count))
    )
    calls = Counter()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        found = read_questions(file, LanguageDataOptions(train_files=file))
        state = PromptStream(found, 8, seed=0, shuffle=True).state_dict()
    finally:
        sys.setprofile(None)
    assert sum(map(sys.getsizeof, found.rows)) / count < len(f"{file}:1000") + 170
    assert (calls["call"] + calls["c_call"]) / count < 66
    assert state == PromptStream(list(found), 8, seed=0, shuffle=True).state_dict()


def test_prompts_in_bytes_are_those_that_were_packed():
    given = [
        Prompt(text='a "fox"\n', where="a:1"),
        Prompt(text="b", label="sums", extra='{"n": 1}', record='{"k": 2}', part=1),
        Prompt(text="ü", answer="4", negative="dark", source="web"),
        Prompt(text="c", images=(Media.encoded(b"", "image"),)), Prompt(text="d", where="a:5"),
    ]  # fmt: skip
    found = Prompts.of(given)
    assert [repr(prompt) for prompt in found] == list(map(repr, given))
    assert list(found.uids()) == [prompt.uid for prompt in given]
    assert found.kinds == given[:4]  # the last is of text alone, as the first
    assert found[3] is given[3]
    assert found.take([4, 0]) == [given[4], given[0]] == found[4:] + found[:1]


KEYS = ("question", "text", "answer", "negative_prompt", "data_source", "label", "image", "tools", "input", "note")
VALUES = ("a fox", "4", "", " ", "<image>", 'say "7"', "ü", "\ud800", "1e999", 4, -1.5, float("nan"), None, [1])


@pytest.mark.parametrize("named", [[], ["data.label_key=level", "data.extra_keys=[note]", "data.answer_key=text"]])
@pytest.mark.parametrize("recipe", ["quickstart", "vlm_quickstart"])
def test_a_record_is_read_as_if_it_were_the_only_one(tmp_path, recipe, named):
    """Records of the same keys are read alike, but for those whose texts decide how they are read."""
    from random import Random

    from burnish.config import load
    from burnish.config.tasks import task_named

    drawn, records = Random(0), []
    for _ in range(200):
        keys = drawn.sample(KEYS, drawn.randint(0, 2))
        values = {key: drawn.choice(VALUES if drawn.random() < 0.3 else ("a fox", 4)) for key in ["prompt", *keys]}
        records.append(json.dumps(values))
    config = load(recipe, [*named, "data.val_files=null"])

    def told(*lines):
        try:
            found = task_named(config.task).read(write(tmp_path / "a.jsonl", *lines), config.data)
        except ValueError as error:
            return str(error).partition(": ")[2]
        return [repr(one).replace(f"a.jsonl:{len(lines)}'", "a.jsonl:1'") for one in found]

    for record in dict.fromkeys(records):
        like = json.dumps({key: "b" if isinstance(one, str) else one for key, one in json.loads(record).items()})
        if not isinstance(told(like), str):
            alone, behind = told(record), told(like, record)  # of the same keys and types
            assert behind == alone if isinstance(alone, str) else behind[1:] == alone, record


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


def chosen(path, name="worst_first"):
    return PromptStream(PROMPTS, 2, seed=5, shuffle=True, sampler=f"{path}:{name}")


def sampled(prompts, rewards, update):
    """Two samples of each prompt; a reward that is None is missing."""
    flat = [one for pair in rewards for one in pair]
    reward = torch.tensor([one or 0.0 for one in flat])
    scores = Scores(
        components=reward[:, None], reward=reward, missing=torch.tensor([one is None for one in flat]), weights=(1.0,),
        names=("r",), notes=[""] * len(flat),
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
    for saved, expected in ((history.state(), [0.5, 1.0]), (history.state(last=2), [0.5]), (None, [])):
        again.load(saved)
        assert again.of(uids, 9) == [expected, [], []]


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
    whole, resumed = chosen(path), chosen(path)
    first = run(whole, range(1, 4))
    assert sorted(text for batch in first for text in batch) == [one.text for one in PROMPTS]
    saved = state(whole)
    rest = run(whole, range(4, 8))
    assert rest == [["prompt 0", "prompt 1"]] * 4, "those that went worst"
    run(resumed, range(1, 3))
    resumed.load_state_dict(saved)
    assert run(resumed, range(4, 8)) == rest
    assert run(chosen(path), range(1, 4)) == first
    with pytest.raises(ValueError, match=ORDER):
        chosen(path, "few").load_state_dict(saved)


def test_what_is_not_rewarded_yet_is_not_seen(path):
    """Where sampling runs ahead, rewards of updates behind the sampling weights are all that counts."""
    found = chosen(path)
    run(found, range(1, 4))
    position = found.position
    late = [one.text for one in found.next_batch(5, 2)]
    found.position = position
    found.sampler.history.add(3, sampled(PROMPTS, [(9.0, 9.0)] * 6, 3))
    assert [one.text for one in found.next_batch(5, 2)] == late


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("few", ["2 numbers", "0 to 5", "returned 1 of them", "update 1"]), ("out", ["0 to 5", "returned 6"]),
        ("texts", ["'prompt 0'"]), ("other", ["records=..., history=..., "]), ("absent", ["absent"]),
        ("broken", ["update 1", "RuntimeError: no luck", "mine.py:29"]),
    ],
)  # fmt: skip
def test_what_a_sampler_does_wrong_is_named(path, name, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (what it says is looked at)
        chosen(path, name).next_batch(1, 0)
    assert [word for word in [f"mine.py:{name}", *words] if word not in str(caught.value)] == [], caught.value


def test_the_sampler_of_the_page_takes_what_is_half_solved_first(tmp_path):
    (code,) = (block.text for block in blocks(ROOT / "docs" / "data_order.md") if block.title == "mine.py")
    (tmp_path / "mine.py").write_text(code)
    found = PromptStream(PROMPTS[:4], 2, seed=0, shuffle=True, sampler=f"{tmp_path / 'mine.py'}:choose")
    past = dict(zip([one.uid for one in PROMPTS], ([1.0], [0.5], [0.0], [0.4]), strict=False))
    found.sampler.history.of = lambda uids, version: [past[uid] for uid in uids]
    assert [one.text for one in found.next_batch(2, 1)] == ["prompt 1", "prompt 3"]
    past[PROMPTS[2].uid] = []
    assert found.next_batch(2, 1)[0].text == "prompt 2", "new ones before all others"
