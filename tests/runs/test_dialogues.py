"""Dialogues as they are sampled: which tokens are whose, that the trainer sees them alike, and what ends them."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import itertools
import logging

import numpy as np
import pytest
import torch

from burnish.environments.base import Environment, Observation
from burnish.language.contexts import unfolded
from burnish.language.kept import Kept
from burnish.language.layers import Layers
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.models.language.own.forwards import Forwards
from burnish.registry import options
from burnish.rewards.judging import judge
from burnish.rewards.text.base import POLICY, Response
from burnish.rewards.text.environment import EnvironmentReward
from burnish.rewards.text.format import Format
from burnish.tasks.language.dialogue_rows import DialogueRow
from burnish.tasks.language.dialogues import Dialogues
from burnish.tasks.language.engine import LanguageEngine, ResponseJob
from burnish.utils.errors import UserError
from tests.support.games import SAMPLING, Roles, Shows, play, prompts
from tests.support.language_samples import model_of, trimmed
from tests.support.tiny_language import picture
from tests.support.universal import TINY, load_universal, universal_folder

LONG = Sampling(max_new_tokens=24, temperature=1.0, stop=tuple("aeiou"))
# Qwen3's and GLM's drop what was thought in earlier turns; a tiny model thinks all but its last letter
FORGETS = ("{{ part['text'] }}", "{{ part['text'][-1:] if message['role'] == 'assistant' else part['text'] }}")


def seen_alike(model, completion, temperature=0.9, layouts=("padded", "packed", "shared"), atol=1e-5):
    """The trainer sees what the sampler saw."""
    for layout in layouts:
        scores = response_logprobs(model, model.network, completion, temperature=temperature, layout=layout)
        torch.testing.assert_close(scores.logprob, completion.logprob, rtol=0, atol=atol)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm", "llama", "internvl"])
def test_a_turn_computes_only_what_is_new_and_says_the_same(family, monkeypatch):
    seeing, read, run = family != "llama", [], Layers.prefill
    monkeypatch.setattr(Layers, "prefill", lambda own, x, *more: read.append(len(x)) or run(own, x, *more))

    def played(kept_gb):
        read.clear()
        environment = Shows(opening=seeing, pictures=seeing, kept_gb=kept_gb)
        completion, _ = play(environment, prompts(family), family=family, batch_size=3)
        return completion, sum(read)

    (again, everything), (kept, new) = played(0.0), played(None)
    assert torch.equal(kept.ids, again.ids)
    torch.testing.assert_close(kept.logprob, again.logprob, rtol=0, atol=1e-5)
    own = int(kept.length.sum()) - int(kept.mask.sum())
    assert new == sum(len(ids) for ids in kept.prompts.table.ids) + own + 2 * len(kept)  # and each last token
    assert everything > 1.5 * new
    seen_alike(Roles(family).model, kept)
    assert not kept.logprob[~kept.mask].any()
    assert all((each.size > 0) == seeing for each in kept.features)


MORE = ["gemma4", "gpt_oss", "lfm2_vl", "llama4", "granite", "cohere2", "qwen3_next", "mamba2"]
OWN = ["gemma3", *(pytest.param(name, marks=pytest.mark.thorough) for name in ["qwen3_5", *MORE])]


@pytest.mark.parametrize("family", OWN)
def test_a_class_with_a_cache_of_its_own_goes_on_from_it(family, monkeypatch, caplog):
    """Behind sliding windows and recurrent states too: rows of other lengths, some of which end early."""
    read, run = [], Forwards.call
    monkeypatch.setattr(
        Forwards, "call", lambda own, network, inputs, **more: read.append(inputs["input_ids"].numel()) or
        run(own, network, inputs, **more),
    )  # fmt: skip
    model, seeing = Roles(family).model, "image" in TINY[family].reads
    asked = prompts(family if seeing else "llama")

    def played(kept_gb, own=model):
        read.clear()
        environment = Shows(opening=seeing, pictures=False, kept_gb=kept_gb, turns=4)
        completion, _ = play(environment, asked, family=own, n=3, batch_size=4, sampling=LONG)
        return completion, sum(read)

    (again, everything), (kept, new) = played(0.0), played(None)
    assert torch.equal(kept.ids, again.ids)
    torch.testing.assert_close(kept.logprob, again.logprob, rtol=0, atol=1e-4)
    assert everything > 1.5 * new
    seen_alike(model, kept, 1.0, ["auto"], 1e-4)
    other = copy.copy(model)
    other.tiers = dataclasses.replace(model.tiers, goes_on=False)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(played(None, other)[0].ids, kept.ids)
    assert caplog.text.count("each turn reads its conversation anew") == 1
    with pytest.raises(UserError, match=r"environment\.kept_gb is 2"):
        played(2, other)


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["gemma3", "qwen3_5"])
def test_a_cache_of_a_class_is_kept_in_half_precision(family):
    model = load_universal(universal_folder(family), dtype="bfloat16")
    environment = Shows(opening=True, pictures=False, turns=4)
    kept, _ = play(environment, prompts(family), family=model, n=3, sampling=LONG)
    scores = response_logprobs(model, model.network, kept, temperature=1.0)
    assert float((scores.logprob - kept.logprob).abs()[kept.mask].mean()) < 0.05


def test_what_has_no_room_is_computed_again():
    kept = Kept(1000)
    ids, cached = torch.arange(5), torch.zeros(1, 2, 1, 5, 10)
    assert kept.has_room(cached.nbytes)
    kept.put("a", ids, cached, cached.nbytes)
    assert not kept.has_room(700)
    assert kept.take("a", torch.arange(7)) is cached
    assert kept.take("a", torch.arange(7)) is None
    kept.put("a", ids, cached, cached.nbytes)
    assert kept.take("a", torch.tensor([0, 1, 9, 3, 4, 5])) is None, "it goes on otherwise"
    kept.put("a", ids, cached, cached.nbytes)
    kept.drop_others(["b"])
    assert kept.used == 0


def test_the_mask_covers_what_the_policy_wrote_and_nothing_else():
    completion, responses = play(Shows(), prompts())
    model = model_of("qwen2_5_vl")
    for row, response in enumerate(responses):
        length = int(completion.length[row])
        ids, mask = completion.ids[row, :length], completion.mask[row]
        changes = [0, *((mask[1:length] != mask[: length - 1]).nonzero().flatten() + 1).tolist(), length]
        runs = ids.split([after - before for before, after in itertools.pairwise(changes)])
        assert mask[0]
        assert [model.decode(run.tolist()) for run in runs[::2]] == response.dialogue.responses
        assert len(runs) == 5
        for number, run in enumerate(runs[1::2], 1):
            assert f"Turn {number}." in model.decode(run.tolist())
            assert torch.isin(run, model.placeholders).any()
        assert not mask[length:].any()
        assert response.dialogue.rewards == (0.5, 1.0, 1.5)
        assert response.text == response.dialogue.responses[-1]
        assert len(response.dialogue.pictures) == 4
        assert [who for who, _ in response.dialogue.said] == ["user", *[POLICY, "user"] * 3]
        assert response.dialogue.said[0][1] == "[picture]Begin."
    asked = prompts()[:1]
    values = [judge(EnvironmentReward(**how), responses[:1], asked)[0].value for how in ({}, {"total": "last"})]
    assert values == [3.0, 1.5]
    assert judge(EnvironmentReward(), [Response("a")], asked)[0].value is None


def test_a_dialogue_does_not_depend_on_its_neighbours_and_a_group_begins_alike():
    together, said = play(Shows(), prompts(), n=3)
    crowded, same = play(Shows(), prompts(), n=3, batch_size=2)
    alone, word = play(Shows(), prompts()[1:], n=3)
    assert [one.dialogue for one in said] == [one.dialogue for one in same]
    assert [one.dialogue for one in said[3:]] == [one.dialogue for one in word]
    assert torch.equal(together.ids, crowded.ids)
    last = trimmed(together.select([3, 4, 5]))
    assert torch.equal(last.ids, alone.ids)
    torch.testing.assert_close(last.logprob, alone.logprob, rtol=0, atol=1e-5)
    _, again = play(Shows(), prompts()[1:] * 2, n=3)
    starts = [one.dialogue.pictures[0].tobytes() for one in (*said[:3], *said[3:], *again)]
    assert len(set(starts[:3])) == len(set(starts[3:9])) == 1
    assert len({starts[0], starts[3], starts[9]}) == 3
    assert len({one.dialogue.responses[0] for one in said}) == 6
    assert len(together.prompts.table) == 2
    job = ResponseJob.groups(prompts(), 3, purpose="rollout", update=1, sampling=SAMPLING)
    _, greedy = Dialogues(LanguageEngine(Roles("qwen2_5_vl"), batch_size=8, seed=0), Shows()).sample(job.greedy())
    assert [one.dialogue.pictures[0].tobytes() for one in greedy] == [starts[0], starts[3]]


def test_one_turn_of_a_silent_environment_is_an_answer_and_the_last_turn_ends_a_dialogue():
    completion, responses = play(Shows(opening=False, max_turns=1), prompts())
    job = ResponseJob.groups(prompts(), 2, purpose="rollout", update=1, sampling=SAMPLING)
    plain, texts = LanguageEngine(Roles("qwen2_5_vl"), batch_size=256, seed=0).sample(job)
    for name in ("ids", "mask", "logprob", "positions", "length", "finished"):
        assert torch.equal(getattr(completion, name), getattr(plain, name)), name
    assert [one.text for one in responses] == [one.text for one in texts]
    completion, responses = play(Shows(turns=9, max_turns=2), prompts())
    assert [len(one.dialogue.responses) for one in responses] == [2] * 4
    assert completion.mask[range(4), completion.length - 1].all()


def test_a_budget_of_tokens_or_the_positions_of_the_model_cut_a_dialogue(monkeypatch):
    whole, _ = play(Shows(), prompts())
    for most in (3, 20, 40, int(whole.length.max())):
        completion, responses = play(Shows(max_length=most), prompts())
        assert int(completion.length.max()) <= most
        # what is said is a beginning of what would be said
        for row, length in enumerate(completion.length.tolist()):
            assert torch.equal(completion.ids[row, :length], whole.ids[row, :length])
        cut = completion.length < whole.length
        assert not completion.finished[cut].any()
        assert all(one.finished == bool(end) for one, end in zip(responses, completion.finished, strict=True))
        # the policy has the last word
        assert completion.mask[range(4), completion.length - 1].all()
    assert not cut.any()
    begun = [len(ids) for ids in whole.prompts.rows().ids]
    for positions in (max(begun) + 20, max(begun)):
        monkeypatch.setattr(model_of("qwen2_5_vl"), "max_positions", positions)
        completion, responses = play(Shows(), prompts())
        lengths = [before + int(own) for before, own in zip(begun, completion.length, strict=True)]
        assert max(lengths) <= positions
        cut = completion.length < whole.length
        assert cut.any()
        assert not completion.finished[cut].any()
    assert all(not one.dialogue.responses for one, before in zip(responses, begun, strict=True) if before == positions)


@pytest.mark.parametrize(("fails", "turns", "says"), [("reset", 0, "no"), ("step", 2, "no"), ("type", 1, "str")])
def test_an_environment_that_fails_is_missing_and_stops_nobody(fails, turns, says):
    completion, responses = play(Shows(fails=fails), prompts())
    if fails == "type":
        assert "step returned str" in responses[0].dialogue.error
        return
    whole, _ = play(Shows(), prompts())
    assert torch.equal(trimmed(completion.select([0, 1])).ids, trimmed(whole.select([0, 1])).ids)
    for reward in (EnvironmentReward(), Format()):
        verdicts = judge(reward, responses, [*prompts()[:1] * 2, *prompts()[1:] * 2])
        assert [verdict.value is None for verdict in verdicts] == [False, False, True, True]
        assert f"RuntimeError: {says}" in verdicts[2].note
        assert all(verdict.asked for verdict in verdicts)
    assert [len(one.dialogue.responses) for one in responses] == [3, 3, turns, turns]
    seen_alike(model_of("qwen2_5_vl"), completion)


class Films:
    """Shows something else to each prompt, after waiting for what all of its methods share."""

    def __init__(self, kind):
        self.kind, self.turn = kind, 0

    async def reset(self, prompt, seed):
        self.lock, self.broken = asyncio.Lock(), prompt.text == "Two?"
        return Observation()

    async def step(self, response):
        async with self.lock:
            await asyncio.sleep(0)
        self.turn += 1
        grey = np.full((4, 28, 28, 3), 20 * self.turn, np.uint8)
        shown = {"video": grey, "strip": picture(0, 900, 2) if self.broken else picture(0)}[self.kind]
        return Observation([shown, "Go on."], reward=1.0, done=self.turn == 3)


@options
class ShowsFilms(Environment):
    kind: str = "video"

    def episode(self):
        return Films(self.kind)


@pytest.mark.parametrize(
    ("family", "history"),
    [("qwen2_5_vl", "tokens"), ("qwen2_5_vl", "template"), ("internvl", "template"), ("gemma3", "tokens"),
     ("gemma3", "template"), pytest.param("qwen3_vl", "tokens", marks=pytest.mark.thorough)],
)  # fmt: skip
def test_a_video_is_seen_alike_by_sampler_and_trainer(family, history):
    if family == "gemma3":
        with pytest.raises(UserError, match=r"video"):
            play(ShowsFilms(history=history), prompts("gemma3"), family="gemma3")
        return
    completion, responses = play(ShowsFilms(history=history), prompts(family), family=family)
    assert all(one.dialogue.rewards == (1.0, 1.0, 1.0) for one in responses)
    assert [words for who, words in responses[0].dialogue.said if who != POLICY] == ["[video]Go on."] * 3
    seen_alike(Roles(family).model, completion, layouts=("padded", "packed"))
    names = {name.rpartition("/")[2] for name in completion.features[0].tensors}
    assert names & {"videos", "pixel_values"}


def test_what_no_processor_reads_breaks_its_own_dialogue():
    _, responses = play(ShowsFilms(kind="strip"), prompts())
    assert [len(one.dialogue.responses) for one in responses] == [3, 3, 1, 1]
    assert [bool(one.dialogue.error) for one in responses] == [False, False, True, True]
    assert "processor" in responses[2].dialogue.error


@pytest.fixture
def forgetful(monkeypatch):
    def made(family):
        model = Roles(family).model
        template = model.tokenizer.chat_template
        assert FORGETS[0] in template
        monkeypatch.setattr(model.tokenizer, "chat_template", template.replace(*FORGETS))
        return model

    return made


def written_anew(*, pictures, **options):
    return Shows(opening=pictures, pictures=pictures, history="template", **options)


CASES = [("qwen2_5_vl", True), ("qwen2_5_vl", False), ("smolvlm", True), ("gemma3", True),
         *(pytest.param(name, seeing, marks=pytest.mark.thorough) for name, seeing in
           (("qwen3_moe", False), ("qwen3_5", True), ("llava_onevision", True)))]  # fmt: skip


@pytest.mark.parametrize(("family", "pictures"), CASES)
def test_each_turn_learns_after_the_conversation_that_it_answered(family, pictures, forgetful):
    model = forgetful(family)
    asked = prompts(family if pictures else "llama")
    completion, responses = play(written_anew(pictures=pictures), asked, family=family)
    seen_alike(model, completion, atol=1e-4)
    turns = unfolded(completion)
    assert len(turns) > len(completion)
    for row, response in enumerate(responses if not pictures else ()):
        names = {POLICY: "assistant"}
        chat = [{"role": names.get(who, who), "content": words} for who, words in response.dialogue.said[:-2]]
        last = model.encode([*asked[row // 2].chat(), *chat]).ids[0]
        ends = [torch.cat([one, ids]) for one, ids in zip(turns.prompts.rows().ids, turns.ids, strict=True)]
        assert any(torch.equal(one[: len(last)], last) for one in ends), "the template's words, up to the last response"


def test_a_turn_depends_on_its_dialogue_alone_and_a_budget_counts_what_is_read_once(forgetful):
    forgetful("qwen2_5_vl")
    together, _ = play(written_anew(pictures=True), prompts(), n=3)
    alone, _ = play(written_anew(pictures=True, kept_gb=0), prompts()[1:], n=3, batch_size=2)
    for row, length in enumerate(alone.length.tolist()):
        assert torch.equal(together.ids[3 + row, :length], alone.ids[row, :length])
    whole, responses = play(written_anew(pictures=False), prompts())
    most = max(int(one) for one in unfolded(whole).length)
    cut, fewer = play(written_anew(pictures=False, max_length=most + 10), prompts())
    assert int(cut.length.max()) < int(whole.length.max())
    assert len(fewer[0].dialogue.responses) < len(responses[0].dialogue.responses)
    assert not fewer[0].finished


def test_what_is_not_written_anew_goes_on():
    """As after calls of tools, where Qwen3's template leaves thoughts in place."""
    model = model_of("qwen2_5_vl")
    first, answer = {"role": "user", "content": "One?"}, {"role": "assistant", "content": "Uno."}
    opening = model.encode([first])
    row = DialogueRow(prompts()[1], (0,), opening, opening, [first], None)
    response = torch.tensor(model.response_ids("Uno."))
    whole = model.encode([first, answer, {"role": "user", "content": "Two?"}])
    rest = row.rest(response, whole)
    assert model.tokenizer.decode(rest.ids[0]) == "\n<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n"
    row.append(response, torch.zeros(len(response)), rest)
    assert torch.equal(row.conversation.ids[0], whole.ids[0])
    assert torch.equal(row.conversation.positions[0], whole.positions[0])
    assert row.rest(torch.tensor(model.response_ids("Dos.")), whole) is None
