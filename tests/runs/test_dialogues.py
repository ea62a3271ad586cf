"""Dialogues as they are sampled: which tokens are whose, that the trainer sees them alike, and what ends them."""

import itertools
import sys
from pathlib import Path

import pytest
import torch
import yaml

from burnish.language.logprobs import response_logprobs, unfolded
from burnish.language.sampling import Sampling
from burnish.registry import lookup
from burnish.rewards.calls import call_reward
from burnish.rewards.text.base import POLICY
from tests.support.asked import reward
from tests.support.games import Roles, Shows, play, prompts
from tests.support.language_samples import model_of, trimmed
from tests.support.optional import seldom

LONG = Sampling(max_new_tokens=24, temperature=1.0, stop=tuple("aeiou"))
# Qwen3's and GLM's drop what was thought in earlier turns; a tiny model thinks all but its last letter
FORGETS = ("{{ part['text'] }}", "{{ part['text'][-1:] if message['role'] == 'assistant' else part['text'] }}")


def seen_alike(model, completion, temperature=0.9, layouts=("padded", "packed", "shared"), atol=1e-5):
    for layout in layouts:
        scores = response_logprobs(model, model.network, completion, temperature=temperature, layout=layout)
        torch.testing.assert_close(scores.logprob, completion.logprob, rtol=0, atol=atol)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama", *seldom("smolvlm", "internvl")])
def test_a_turn_computes_only_what_is_new_and_says_the_same(family, monkeypatch):
    """Rows of other lengths, some of which end early."""
    model = Roles(family).model
    seeing = "image" in model.readable
    asked, read = prompts(family if seeing else "llama"), []
    embedding = model.network.get_input_embeddings()
    hook = embedding.register_forward_hook(lambda _, given, out: read.append(given[0].numel()))

    def played(kept):
        read.clear()
        monkeypatch.setattr("burnish.language.dialogues.KEPT", kept)
        environment = Shows(opening=seeing, images=family == "qwen2_5_vl", turns=4)
        completion, _ = play(environment, asked, family=family, n=3, batch_size=4, sampling=LONG)
        return completion, sum(read)

    (again, everything), (kept, new) = played(0), played(1 << 30)
    hook.remove()
    assert torch.equal(kept.ids, again.ids)
    torch.testing.assert_close(kept.logprob, again.logprob, rtol=0, atol=1e-4)
    assert everything > 1.5 * new
    seen_alike(model, kept, 1.0, ["auto"], 1e-4)
    assert not kept.logprob[~kept.mask].any()


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
        assert len(response.dialogue.images) == 4
        assert [who for who, _ in response.dialogue.said] == ["user", *[POLICY, "user"] * 3]
        assert response.dialogue.said[0][1] == "[image]Begin."
    assert reward("environment", total="last")(responses[:1], prompts()[:1])[0].value == 1.5


def test_a_dialogue_does_not_depend_on_its_neighbours_and_a_group_begins_alike():
    told = []
    together, said = play(
        Shows(), prompts(), n=3, finished=lambda rows, ended: told.extend(zip(rows, ended, strict=True))
    )
    assert sorted(told, key=lambda pair: pair[0]) == list(enumerate(said)), "each once, when it is over"
    crowded, same = play(Shows(), prompts(), n=3, batch_size=2)
    alone, word = play(Shows(), prompts()[1:], n=3)
    assert [one.dialogue for one in said] == [one.dialogue for one in same]
    assert [one.dialogue for one in said[3:]] == [one.dialogue for one in word]
    assert torch.equal(together.ids, crowded.ids)
    last = trimmed(together.select([3, 4, 5]))
    assert torch.equal(last.ids, alone.ids)
    torch.testing.assert_close(last.logprob, alone.logprob, rtol=0, atol=1e-5)
    for changed in ({"update": 2}, {"seed": 1}):
        (other,), one = play(Shows(turns=1), prompts()[1:], n=1, **changed)[1], said[3]
        assert one.dialogue.images[0].tobytes() != other.dialogue.images[0].tobytes()
        assert one.dialogue.responses[0] != other.dialogue.responses[0]
    _, again = play(Shows(), prompts()[1:] * 2, n=3)
    starts = [one.dialogue.images[0].tobytes() for one in (*said[:3], *said[3:], *again)]
    assert len(set(starts[:3])) == len(set(starts[3:9])) == 1
    assert len({starts[0], starts[3], starts[9]}) == 3


def test_a_budget_of_tokens_or_of_turns_cuts_a_dialogue():
    whole, _ = play(Shows(), prompts())
    assert [len(one.dialogue.responses) for one in play(Shows(turns=9, max_turns=2), prompts())[1]] == [2] * 4
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


@pytest.mark.parametrize(("fails", "turns", "says"), [
    ("reset", 0, "no"), ("step", 2, "no"), ("type", 1, "step returned str"), ("reward", 0, "reset gave a reward"),
    ("length", 0, "all that the model reads"),
])  # fmt: skip
def test_an_environment_that_fails_is_missing_and_stops_nobody(fails, turns, says):
    completion, responses = play(Shows(fails=fails), prompts())
    if says != "no":
        assert says in responses[0].dialogue.error
        assert [len(one.dialogue.responses) for one in responses] == [turns] * 4
        return
    whole, _ = play(Shows(), prompts())
    assert torch.equal(trimmed(completion.select([0, 1])).ids, trimmed(whole.select([0, 1])).ids)
    scores = call_reward(reward("environment"), responses, [*prompts()[:1] * 2, *prompts()[1:] * 2])
    assert [score.value is None for score in scores] == [False, False, True, True]
    assert f"RuntimeError: {says}" in scores[2].note
    assert all(score.applicable for score in scores)
    assert [len(one.dialogue.responses) for one in responses] == [3, 3, turns, turns]
    seen_alike(model_of("qwen2_5_vl"), completion)


@pytest.mark.parametrize(("family", "history"), [("qwen2_5_vl", "tokens"), ("internvl", "template")])
def test_a_video_is_seen_alike_by_sampler_and_trainer_and_what_no_processor_reads_breaks_its_own_dialogue(
    family, history
):
    """A strip 450 times as wide as it is high, which only Qwen's refuses."""
    shows = Shows(opening=False, films=True, fails="strip", history=history)
    completion, responses = play(shows, prompts(family), family=family)
    assert all(one.dialogue.rewards == (0.5, 1.0, 1.5) for one in responses[:2])
    assert responses[0].dialogue.said[1::2] == tuple(("user", f"[video]Turn {turn}.") for turn in (1, 2, 3))
    seen_alike(Roles(family).model, completion, layouts=("padded", "packed"))
    if family == "qwen2_5_vl":
        assert "processor" in responses[2].dialogue.error
        assert completion.features[0].tensors["video_grid_thw"].tolist() == [[4, 8, 8]] * 2, "all frames, in pairs"


def test_what_follows_another_question_is_seen_alike_by_sampler_and_trainer():
    completion, responses = play(Shows(asks=True), prompts())
    assert [one.dialogue.rewards for one in responses] == [(None, 1.0, 1.5)] * 4
    assert "system\nBe brief." in model_of("qwen2_5_vl").tokenizer.decode(completion.prompts.table.ids[0])
    seen_alike(model_of("qwen2_5_vl"), completion, layouts=("padded", "packed"))


def test_a_conversation_that_its_template_only_continues_is_not_written_anew():
    (kept, said), (written, _) = (
        play(Shows(opening=False, images=False, history=history), prompts("llama"), family="llama", n=24,
             sampling=Sampling(max_new_tokens=1, temperature=0.9)) for history in ("tokens", "template")
    )  # fmt: skip
    spelled = [row for row, one in enumerate(said) if all(word.isascii() and word for word in one.dialogue.responses)]
    found, other = (trimmed(one.select(spelled)) for one in (kept, written))
    assert all(map(torch.equal, (found.ids, found.positions), (other.ids, other.positions)))
    torch.testing.assert_close(found.logprob, other.logprob, rtol=0, atol=1e-5)
    assert found.length.tolist() == other.length.tolist() != []


CASES = [("qwen2_5_vl", True), ("qwen2_5_vl", False), ("gemma3", True),
         *(pytest.param(name, seeing, marks=pytest.mark.thorough) for name, seeing in
           (("qwen3_moe", False), ("qwen3_5", True), ("llava_onevision", True)))]  # fmt: skip


@pytest.mark.parametrize(("family", "images"), CASES)
def test_each_turn_learns_after_the_conversation_that_it_answered(family, images, monkeypatch):
    model = Roles(family).model
    template = model.tokenizer.chat_template
    assert FORGETS[0] in template
    monkeypatch.setattr(model.tokenizer, "chat_template", template.replace(*FORGETS))
    asked = prompts(family if images else "llama")
    environment = Shows(opening=images, images=images, history="template")
    completion, responses = play(environment, asked, family=family)
    seen_alike(model, completion, atol=1e-4)
    turns = unfolded(completion)
    assert len(turns) > len(completion)
    for row, response in enumerate(responses if not images else ()):
        names = {POLICY: "assistant"}
        chat = [{"role": names.get(who, who), "content": words} for who, words in response.dialogue.said[:-2]]
        last = model.encode([*asked[row // 2].chat(), *chat]).ids[0]
        ends = [torch.cat([one, ids]) for one, ids in zip(turns.prompts.rows().ids, turns.ids, strict=True)]
        assert any(torch.equal(one[: len(last)], last) for one in ends), "the template's words, up to the last response"


PROGRAMS = yaml.safe_load(Path(__file__).with_name("programs.yaml").read_text())
AGENT, CALLS = PROGRAMS["agent"], PROGRAMS["calls"]


def test_an_agent_with_a_loop_of_its_own_asks_over_http_and_what_it_showed_is_learned(tmp_path):
    """Its further conversations are others, with two images and with none; of the second prompt it fails at once."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "calls.py").write_text(CALLS)
    command = [sys.executable, str(tmp_path / "agent.py")]
    agent = lookup("environment", "agent")(command=command, calls=f"{tmp_path}/calls.py:every")
    completion, responses = play(agent, prompts())
    again, _ = play(agent, prompts())
    agent.close()
    assert torch.equal(completion.ids, again.ids)
    seen_alike(model_of("qwen2_5_vl"), completion)
    for response in responses[:2]:
        assert response.dialogue.rewards == (None, None, None, len(response.dialogue.responses[1]))
        assert [words for who, words in response.dialogue.said if who != POLICY] == [
            "Be brief.\n[image]One?", "Go on.", "[image]One?[image]One?", "Bye.",
        ]  # fmt: skip
    for response in responses[2:]:
        assert response.dialogue.rewards == (None,)
        assert "exit code 1: no second turn" in response.dialogue.error
