import json
import sys
from collections import Counter

import pytest

from burnish.data.language.prompts import read_questions
from burnish.data.stream import PromptStream
from burnish.options.language import LanguageDataOptions
from burnish.types.media import Media
from burnish.types.packed import Prompts
from burnish.types.rollout import Prompt
from burnish.utils import random
from burnish.utils.errors import UserError


def stream(count: int = 7, batch: int = 3, seed: int = 0, shuffle: bool = True) -> PromptStream:
    prompts = [Prompt(text=f"prompt {i}") for i in range(count)]
    return PromptStream(prompts, batch, seed=seed, shuffle=shuffle)


def texts(found: PromptStream, batches: int) -> list[str]:
    return [prompt.text for _ in range(batches) for prompt in found.next_batch()]


def test_every_epoch_has_every_prompt_once_in_a_new_order():
    found = texts(stream(), 7)
    epochs = [found[start : start + 7] for start in (0, 7, 14)]
    for epoch, order in enumerate(epochs):
        assert order == [f"prompt {i}" for i in random.permutation(7, 0, "data", epoch)]
        assert sorted(order) == [f"prompt {i}" for i in range(7)]
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_depends_on_the_seed():
    assert texts(stream(seed=1), 4) == texts(stream(seed=1), 4) != texts(stream(seed=2), 4)


def test_without_shuffling_the_file_is_read_round_and_round():
    assert texts(stream(4, 3, shuffle=False), 4) == [f"prompt {i % 4}" for i in range(12)]


@pytest.mark.parametrize(("count", "batch"), [(1, 1), (1, 4), (2, 5), (5, 5), (7, 3), (10, 9)])
def test_batches_are_always_full_and_no_prompt_is_left_out(count, batch):
    found = stream(count, batch)
    for _ in range(2 * count):
        assert len(found.next_batch()) == batch
    again = Counter(texts(stream(count, batch), count))
    assert again == {f"prompt {i}": batch for i in range(count)}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("taken", range(8))
def test_a_resumed_stream_goes_on_as_if_nothing_had_happened(taken, shuffle):
    whole = stream(shuffle=shuffle)
    texts(whole, taken)
    resumed = stream(shuffle=shuffle)
    texts(resumed, 2)  # it has already been somewhere else
    resumed.load_state_dict(whole.state_dict())
    assert texts(resumed, 9) == texts(whole, 9)


def test_the_state_is_a_snapshot():
    found = stream()
    saved = found.state_dict()
    texts(found, 3)
    assert saved == stream().state_dict()


ORDER = "data.shuffle, seed, data.mix or data.sampler differ"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (stream(count=8), "had 7 records at the checkpoint and has 8 now, and 0 of the former"),
        (stream(seed=1), ORDER),
        (stream(shuffle=False), ORDER),
        (PromptStream([Prompt(text=f"prompt {6 - i}") for i in range(7)], 3, seed=0, shuffle=True), "6 of 7"),
        (PromptStream([Prompt(text=f"prompt {i}", answer="a") for i in range(7)], 3, seed=0, shuffle=True), "7 of 7"),
    ],
    ids=["more", "seed", "order", "reversed", "answers"],
)
def test_resuming_with_other_data_is_refused(other, said):
    state = stream().state_dict()
    with pytest.raises(UserError, match=f"^cannot resume: .*{said}.*; restore what was"):
        other.load_state_dict(state)


def mended(*changes: tuple[int, str | None], count: int = 8):
    """A stream over prompts some of which are changed, or taken out where the change is None."""
    written = {i: f"prompt {i}" for i in range(count)} | dict(changes)
    prompts = [Prompt(text=text, where=f"data.jsonl:{i + 1}") for i, text in written.items() if text is not None]
    return PromptStream(prompts, 3, seed=0, shuffle=True)


def test_changed_records_are_named_and_the_run_goes_on_where_it_was(caplog):
    before = mended()
    texts(before, 2)
    whole = texts(before, 4)
    before.position = 6
    after = mended((2, "mended"), (5, "mended too"))
    after.load_state_dict(before.state_dict())
    changed = {"prompt 2": "mended", "prompt 5": "mended too"}
    assert texts(after, 4) == [changed.get(text, text) for text in whole]
    assert "2 of 8 training records have changed since the checkpoint: data.jsonl:3, data.jsonl:6;" in caplog.text


def test_records_that_were_taken_out_are_told_and_every_later_epoch_holds_each_once(caplog):
    before = mended()
    texts(before, 5)  # 15 records: 7 of the second epoch
    after = mended((1, None), (6, None))
    after.load_state_dict(before.state_dict())
    assert after.position == 6 + 6  # the second epoch of six is over with six
    assert sorted(texts(after, 2)) == sorted(prompt.text for prompt in after.items)
    assert "had 8 records at the checkpoint and have 6 now; removed or changed: record 2, record 7." in caplog.text


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (mended(*((i, f"other {i}") for i in range(5))), "5 of 8 training records have changed: data.jsonl:1, "),
        (mended(*((i, None) for i in range(5))), "has 3 now, and 5 of the former are gone"),
        (mended(count=9), "has 9 now"),
    ],
    ids=["most changed", "most gone", "more"],
)
def test_data_that_are_mostly_others_are_refused(other, said):
    with pytest.raises(UserError, match=said):
        other.load_state_dict(mended().state_dict())


def test_a_state_that_remembers_no_records_goes_on_with_the_same_data_alone():
    state = {name: value for name, value in mended().state_dict().items() if name in ("position", "data")}
    mended().load_state_dict(state)
    with pytest.raises(UserError, match="differ"):
        mended((2, "mended")).load_state_dict(state)


def test_another_batch_size_goes_on_with_the_prompts_not_yet_seen():
    whole, resumed = stream(batch=2), stream(batch=5)
    first = texts(whole, 1)
    resumed.load_state_dict(whole.state_dict())
    assert sorted(first + texts(resumed, 1)) == sorted(f"prompt {i}" for i in range(7))


def test_what_comes_next_is_known_and_taking_it_changes_nothing():
    for mix in (None, ([i % 2 for i in range(7)], [1.0, 3.0])):
        items = [Prompt(text=str(i)) for i in range(7)]
        plain, peeking = (PromptStream(items, 3, seed=4, shuffle=True, mix=mix) for _ in range(2))
        for _ in range(4):
            next_ones = peeking.peek(2)
            assert peeking.next_batch() == plain.next_batch() == next_ones[:3]
        state = peeking.state_dict()
        peeking.peek()
        assert peeking.state_dict() == state
        again = PromptStream(items, 3, seed=4, shuffle=True, mix=mix)
        again.peek()
        again.load_state_dict(state)
        assert again.next_batch() == plain.next_batch()


def test_many_prompts_take_little_more_than_their_texts(tmp_path):
    file, count = tmp_path / "many.jsonl", 1000
    records = [{"prompt": f"what is {i} + 1?", "answer": str(i + 1)} for i in range(count)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    calls: Counter[str] = Counter()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        prompts = read_questions(str(file), LanguageDataOptions(train_files=str(file)))
        state = PromptStream(prompts, 8, seed=0, shuffle=True).state_dict()
    finally:
        sys.setprofile(None)
    assert sum(map(sys.getsizeof, prompts.rows)) / count < len(f"{file}:1000") + 170
    assert (calls["call"] + calls["c_call"]) / count < 66
    assert state == PromptStream(list(prompts), 8, seed=0, shuffle=True).state_dict()


def test_prompts_in_bytes_are_those_that_were_packed():
    picture = Media.encoded(b"", "image")
    given = [
        Prompt(text='a "fox"\n', where="a:1"),
        Prompt(text="b", label="sums", extra='{"n": 1}', record='{"k": 2}', part=1),
        Prompt(text="ü", answer="4", negative="dark", source="web"), Prompt(text="c", images=(picture,)),
        Prompt(text="d", where="a:5"),
    ]  # fmt: skip
    prompts = Prompts.of(given)
    assert [repr(prompt) for prompt in prompts] == list(map(repr, given))
    assert list(prompts.uids()) == [prompt.uid for prompt in given]
    assert prompts.kinds == given[:4]  # the last is of text alone, as the first
    assert prompts[3] is given[3]
    assert prompts.take([4, 0]) == [given[4], given[0]] == prompts[4:] + prompts[:1]
