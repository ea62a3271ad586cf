"""Dialogues as they are sampled: which tokens are whose, that the trainer sees them alike, and what ends them."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging

import pytest
import torch

from burnish.language.kept import Kept
from burnish.language.layers import Layers
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.models.language.own.forwards import Forwards
from burnish.rewards.judging import judge
from burnish.rewards.text.base import POLICY, Response
from burnish.rewards.text.environment import EnvironmentReward
from burnish.rewards.text.format import Format
from burnish.tasks.language.dialogues import Dialogues
from burnish.tasks.language.engine import LanguageEngine, ResponseJob
from burnish.utils.errors import UserError
from tests.support.games import SAMPLING, Roles, Shows, play, prompts
from tests.support.language_samples import model_of, trimmed
from tests.support.universal import TINY, load_universal, universal_folder


@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm", "llama"])
def test_the_trainer_sees_what_the_sampler_saw(family, layout):
    seeing = family != "llama"
    completion, _ = play(Shows(opening=seeing, pictures=seeing), prompts(family), family=family)
    model = model_of(family)
    scores = response_logprobs(model, model.network, completion, temperature=0.9, layout=layout)
    torch.testing.assert_close(scores.logprob, completion.logprob, rtol=0, atol=1e-5)
    assert not completion.logprob[~completion.mask].any()
    assert all((own.size > 0) == seeing for own in completion.features)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "smolvlm", "llama", "internvl"])
def test_a_turn_computes_only_what_is_new(family, monkeypatch):
    """And says the same as one that computes everything again."""
    seeing = family != "llama"
    read = []
    run = Layers.prefill
    monkeypatch.setattr(Layers, "prefill", lambda own, x, *more: read.append(len(x)) or run(own, x, *more))

    def played(kept_gb):
        read.clear()
        environment = Shows(opening=seeing, pictures=seeing, kept_gb=kept_gb)
        completion, _ = play(environment, prompts(family), family=family, batch_size=3)
        return completion, sum(read)

    (again, everything), (kept, new) = played(0.0), played(None)
    assert torch.equal(kept.ids, again.ids)
    torch.testing.assert_close(kept.logprob, again.logprob, rtol=0, atol=1e-5)
    prefilled = sum(len(ids) for ids in kept.prompts.table.ids)
    own = int(kept.length.sum()) - int(kept.mask.sum())
    assert new == prefilled + own + 2 * len(kept), "prompts, what the environment said, and each last token"
    assert everything > 1.5 * new


MORE = ["gemma4", "gpt_oss", "lfm2_vl", "llama4", "granite", "cohere2", "qwen3_next", "mamba2"]
OWN = ["gemma3", "qwen3_5", *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE)]


@pytest.mark.parametrize("family", OWN)
def test_a_class_with_a_cache_of_its_own_goes_on_from_it(family, monkeypatch):
    """Behind sliding windows and recurrent states too: rows of other lengths, some of which end early."""
    read = []
    run = Forwards.call
    monkeypatch.setattr(
        Forwards, "call", lambda own, network, inputs, **more: read.append(inputs["input_ids"].numel()) or
        run(own, network, inputs, **more),
    )  # fmt: skip
    model, seeing = Roles(family).model, "image" in TINY[family].reads
    assert (model.tiers.goes_on, model.tiers.fast) == (True, False)
    asked = prompts(family if seeing else "llama")
    long = Sampling(max_new_tokens=24, temperature=1.0, stop=tuple("aeiou"))

    def played(kept_gb):
        read.clear()
        environment = Shows(opening=seeing, pictures=False, kept_gb=kept_gb, turns=4)
        completion, _ = play(environment, asked, family=family, n=3, batch_size=4, sampling=long)
        return completion, sum(read)

    (again, everything), (kept, new) = played(0.0), played(None)
    assert torch.equal(kept.ids, again.ids)
    torch.testing.assert_close(kept.logprob, again.logprob, rtol=0, atol=1e-4)
    assert everything > 1.5 * new
    scores = response_logprobs(model, model.network, kept, temperature=1.0)
    torch.testing.assert_close(scores.logprob, kept.logprob, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["gemma3", pytest.param("qwen3_5", marks=pytest.mark.thorough)])
def test_a_cache_of_a_class_is_kept_in_half_precision(family):
    model = load_universal(universal_folder(family), dtype="bfloat16")
    assert model.tiers.goes_on
    asked = prompts(family)
    long = Sampling(max_new_tokens=24, temperature=1.0, stop=tuple("aeiou"))
    kept, _ = play(Shows(opening=True, pictures=False, turns=4), asked, family=model, n=3, sampling=long)
    scores = response_logprobs(model, model.network, kept, temperature=1.0)
    off = (scores.logprob - kept.logprob).abs()[kept.mask]
    assert float(off.mean()) < 0.05


def test_a_class_that_can_t_go_on_is_told_of_once(caplog):
    family = "gemma3"
    own = copy.copy(Roles(family).model)
    own.tiers = dataclasses.replace(own.tiers, goes_on=False)
    with caplog.at_level(logging.WARNING):
        completion, _ = play(Shows(pictures=False), prompts(family), family=own)
    assert caplog.text.count("each turn reads its conversation anew") == 1
    same, _ = play(Shows(pictures=False, kept_gb=0), prompts(family), family=own)
    assert torch.equal(same.ids, completion.ids)
    with pytest.raises(UserError, match=r"environment\.kept_gb is 2.*leave it out"):
        play(Shows(pictures=False, kept_gb=2), prompts(family), family=own)


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
        ids, mask = completion.ids[row, : completion.length[row]], completion.mask[row]
        runs = ids.split(_runs(mask[: len(ids)]))
        assert [model.decode(run.tolist()) for run in runs[::2]] == response.dialogue.responses
        assert len(runs) == 5
        for number, run in enumerate(runs[1::2], 1):
            assert f"Turn {number}." in model.decode(run.tolist())
            assert torch.isin(run, model.placeholders).any()
        assert not mask[len(ids) :].any()
        assert response.dialogue.rewards == (0.5, 1.0, 1.5)
        assert response.text == response.dialogue.responses[-1]
        assert len(response.dialogue.pictures) == 4
        assert [who for who, _ in response.dialogue.said] == ["user", *[POLICY, "user"] * 3]
        assert response.dialogue.said[0][1] == "[picture]Begin."


def _runs(mask):
    """Lengths of stretches of equal values; the first one is of true."""
    changes = [0, *((mask[1:] != mask[:-1]).nonzero().flatten() + 1).tolist(), len(mask)]
    assert mask[0]
    return [after - before for before, after in itertools.pairwise(changes)]


def test_a_dialogue_does_not_depend_on_its_neighbours():
    together, said = play(Shows(), prompts(), n=3)
    crowded, same = play(Shows(), prompts(), n=3, batch_size=2)
    alone, word = play(Shows(), prompts()[1:], n=3)
    assert [one.dialogue for one in said] == [one.dialogue for one in same]
    assert [one.dialogue for one in said[3:]] == [one.dialogue for one in word]
    assert torch.equal(together.ids, crowded.ids)
    last = trimmed(together.select([3, 4, 5]))
    assert torch.equal(last.ids, alone.ids)
    torch.testing.assert_close(last.logprob, alone.logprob, rtol=0, atol=1e-5)


def test_a_group_begins_alike_and_another_one_otherwise():
    _, first = play(Shows(), prompts(), n=3)
    _, again = play(Shows(), prompts()[1:] * 2, n=3)
    starts = [one.dialogue.pictures[0].tobytes() for one in (*first[3:], *again)]
    assert len(set(starts[:6])) == 1
    assert starts[6] != starts[5]
    assert len({one.dialogue.pictures[0].tobytes() for one in first[:3]}) == 1
    assert first[0].dialogue.pictures[0].tobytes() != first[3].dialogue.pictures[0].tobytes()
    assert len({one.dialogue.responses[0] for one in first}) == 6
    completion, _ = play(Shows(), prompts(), n=3)
    assert len(completion.prompts.table) == 2


def test_one_turn_of_a_silent_environment_is_an_answer():
    completion, responses = play(Shows(opening=False, max_turns=1), prompts())
    roles = Roles("qwen2_5_vl")
    job = ResponseJob.groups(prompts(), 2, purpose="rollout", update=1, sampling=SAMPLING)
    plain, texts = LanguageEngine(roles, batch_size=256, seed=0).sample(job)
    for name in ("ids", "mask", "logprob", "positions", "length", "finished"):
        assert torch.equal(getattr(completion, name), getattr(plain, name)), name
    assert [one.text for one in responses] == [one.text for one in texts]


def test_the_last_turn_ends_a_dialogue():
    completion, responses = play(Shows(turns=9, max_turns=2), prompts())
    assert [len(one.dialogue.responses) for one in responses] == [2] * 4
    assert completion.mask[range(4), completion.length - 1].all()


def test_a_budget_of_tokens_cuts_a_dialogue():
    whole, _ = play(Shows(), prompts())
    for most in (3, 20, 40, int(whole.length.max())):
        completion, responses = play(Shows(max_length=most), prompts())
        assert int(completion.length.max()) <= most
        # what is said is a beginning of what would be said
        width = completion.ids.shape[1]
        for row, length in enumerate(completion.length.tolist()):
            assert torch.equal(completion.ids[row, :length], whole.ids[row, :width][:length])
        cut = completion.length < whole.length
        assert not completion.finished[cut].any()
        assert all(one.finished == bool(end) for one, end in zip(responses, completion.finished, strict=True))
        # the policy has the last word
        assert completion.mask[range(4), completion.length - 1].all()
    assert not cut.any()


def test_the_positions_of_the_model_cut_a_dialogue(monkeypatch):
    whole, _ = play(Shows(), prompts())
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


@pytest.mark.parametrize(("fails", "turns"), [("reset", 0), ("step", 2)])
def test_an_environment_that_fails_is_missing_and_stops_nobody(fails, turns):
    completion, responses = play(Shows(fails=fails), prompts())
    whole, _ = play(Shows(), prompts())
    assert torch.equal(trimmed(completion.select([0, 1])).ids, trimmed(whole.select([0, 1])).ids)
    for reward in (EnvironmentReward(), Format()):
        verdicts = judge(reward, responses, [*prompts()[:1] * 2, *prompts()[1:] * 2])
        assert [verdict.value is None for verdict in verdicts] == [False, False, True, True]
        assert "the environment failed: RuntimeError: no" in verdicts[2].note
        assert all(verdict.asked for verdict in verdicts)
    assert [len(one.dialogue.responses) for one in responses] == [3, 3, turns, turns]
    model = model_of("qwen2_5_vl")
    scores = response_logprobs(model, model.network, completion, temperature=0.9)
    torch.testing.assert_close(scores.logprob, completion.logprob, rtol=0, atol=1e-5)


def test_an_environment_that_gives_something_else_is_told_so():
    _, responses = play(Shows(fails="type"), prompts())
    assert "step returned str; it must be an Observation" in responses[0].dialogue.error


def test_all_turns_of_a_greedy_job_start_where_the_others_do():
    engine_job = ResponseJob.groups(prompts(), 2, purpose="rollout", update=1, sampling=SAMPLING)
    engine = Dialogues(LanguageEngine(Roles("qwen2_5_vl"), batch_size=8, seed=0), Shows())
    _, sampled = engine.sample(engine_job)
    _, greedy = engine.sample(engine_job.greedy())
    assert len(greedy) == 2
    assert greedy[1].dialogue.pictures[0].tobytes() == sampled[2].dialogue.pictures[0].tobytes()


def test_the_environment_s_reward_is_its_sum_or_its_last():
    _, (one, *_) = play(Shows(), prompts())
    (whole,) = judge(EnvironmentReward(), [one], prompts()[:1])
    (last,) = judge(EnvironmentReward(total="last"), [one], prompts()[:1])
    assert (whole.value, last.value, whole.note) == (3.0, 1.5, "3 turns")
    (nobody,) = judge(EnvironmentReward(), [Response("a")], prompts()[:1])
    assert nobody.value is None
