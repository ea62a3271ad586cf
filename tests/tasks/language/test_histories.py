"""Turns that are answered from the conversation as the chat template writes it then, without earlier thoughts."""

from __future__ import annotations

import pytest
import torch

from burnish.language.contexts import unfolded
from burnish.language.logprobs import response_logprobs
from burnish.rewards.text.base import POLICY
from burnish.tasks.language.dialogue_rows import DialogueRow
from tests.support.games import Roles, Shows, play, prompts
from tests.support.language_samples import model_of

# Qwen3's and GLM's drop what was thought in earlier turns; a tiny model thinks all but its last letter
FORGETS = ("{{ part['text'] }}", "{{ part['text'][-1:] if message['role'] == 'assistant' else part['text'] }}")


@pytest.fixture
def forgetful(monkeypatch):
    def made(family):
        model = Roles(family).model
        template = model.tokenizer.chat_template
        assert FORGETS[0] in template
        monkeypatch.setattr(model.tokenizer, "chat_template", template.replace(*FORGETS))
        return model

    return made


def shown(family, *, pictures, **options):
    return Shows(opening=pictures, pictures=pictures, history="template", **options)


CASES = [("qwen2_5_vl", True), ("qwen2_5_vl", False), ("smolvlm", True), ("qwen3_moe", False), ("gemma3", True),
         pytest.param("qwen3_5", True, marks=pytest.mark.thorough),
         pytest.param("llava_onevision", True, marks=pytest.mark.thorough)]  # fmt: skip


@pytest.mark.parametrize(("family", "pictures"), CASES)
def test_each_turn_learns_after_the_conversation_that_it_answered(family, pictures, forgetful):
    model = forgetful(family)
    asked = prompts(family if pictures else "llama")
    completion, responses = play(shown(family, pictures=pictures), asked, family=family)
    for layout in ("padded", "packed", "shared"):
        scores = response_logprobs(model, model.network, completion, temperature=0.9, layout=layout)
        torch.testing.assert_close(scores.logprob, completion.logprob, rtol=0, atol=1e-4)
    turns = unfolded(completion)
    assert len(turns) > len(completion)
    for row, response in enumerate(responses if not pictures else ()):
        names = {POLICY: "assistant"}
        chat = [{"role": names.get(who, who), "content": words} for who, words in response.dialogue.said[:-2]]
        last = model.encode([*asked[row // 2].chat(), *chat]).ids[0]
        ends = [torch.cat([one, ids]) for one, ids in zip(turns.prompts.rows().ids, turns.ids, strict=True)]
        assert any(torch.equal(one[: len(last)], last) for one in ends), "the template's words, up to the last response"


def test_a_turn_depends_on_its_dialogue_alone(forgetful):
    forgetful("qwen2_5_vl")
    together, _ = play(shown("qwen2_5_vl", pictures=True), prompts(), n=3)
    alone, _ = play(shown("qwen2_5_vl", pictures=True, kept_gb=0), prompts()[1:], n=3, batch_size=2)
    for row, length in enumerate(alone.length.tolist()):
        assert torch.equal(together.ids[3 + row, :length], alone.ids[row, :length])


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


def test_a_budget_counts_what_is_read_once(forgetful):
    forgetful("qwen2_5_vl")
    whole, responses = play(shown("qwen2_5_vl", pictures=False), prompts())
    most = max(int(one) for one in unfolded(whole).length)
    cut, fewer = play(shown("qwen2_5_vl", pictures=False, max_length=most + 10), prompts())
    assert int(cut.length.max()) < int(whole.length.max())
    assert len(fewer[0].dialogue.responses) < len(responses[0].dialogue.responses)
    assert not fewer[0].finished
