"""What vLLM is sent of a conversation that is written anew for every turn is all that the turn answers.

In vLLM's place stands Burnish's decoder, which gets nothing but what would be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from burnish.language.contexts import unfolded
from burnish.language.decoding import decode
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.options.vllm import VllmOptions
from burnish.tasks.language.dialogues import Dialogues
from burnish.tasks.language.engine import LanguageEngine, ResponseJob
from burnish.tasks.language.vllm import engine as module
from burnish.tasks.language.vllm.engine import VllmEngine
from burnish.types.completion import Encoded, Features
from tests.support.games import SAMPLING, Roles, Shows, prompts

FORGETS = ("{{ part['text'] }}", "{{ part['text'][-1:] if message['role'] == 'assistant' else part['text'] }}")


class StandIn:
    """Answers as vLLM's process does, from the arrays alone."""

    def __init__(self, model: Any) -> None:
        self.model, self.version, self.asked = model, 0, 0

    def ready(self, check_cancelled: Any = None) -> dict[str, Any]:
        return {"longest": 4096}

    def close(self) -> None:
        pass

    def ask(
        self, what: str, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None, *_: Any
    ) -> Iterator[Any]:
        if header["do"] == "load":
            self.version = header["version"]
            yield {"version": self.version, "digest": header["digest"], "missing": []}, {}
            return
        assert arrays is not None
        sent = self._encoded(header["media"], arrays)
        if header["do"] == "score":
            for row, ids in enumerate(sent.ids):
                yield {"row": row, "version": self.version}, {"logprob": np.zeros(len(ids) - 1, np.float32)}
        else:
            self.asked += 1
            yield from self._sampled(header, arrays, sent)
        yield {"done": True}, {}

    def _sampled(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], sent: Encoded) -> Iterator[Any]:
        limits = arrays["limit"].tolist()
        sampling = Sampling(max_new_tokens=max(limits), temperature=header["temperature"])
        index, keys = arrays["prompt"].tolist(), arrays["seed"].tolist()
        found = decode(self.model, self.model.network, sent, index, keys, sampling, limits=limits)
        for row, length in reversed(list(enumerate(found.length.tolist()))):  # in whatever order
            about = {"row": row, "finished": bool(found.finished[row]), "version": self.version}
            yield about, {"ids": found.ids[row, :length].numpy(), "logprob": found.logprob[row, :length].numpy()}

    def _encoded(self, media: list[dict[str, int]], arrays: Mapping[str, np.ndarray]) -> Encoded:
        ids, positions, features = [], [], []
        for number, kinds in enumerate(media):
            own = {name.partition("/")[2]: torch.from_numpy(one) for name, one in arrays.items()
                   if name.startswith(f"{number}/")}  # fmt: skip
            tensors = {f"{kind}s": own[kind] for kind in kinds} | {
                f"{kind}_grid": own[f"{kind}_grid"] for kind in kinds
            }
            ids.append(own["ids"])
            alone = torch.arange(len(own["ids"])).expand(self.model.axes, -1)
            positions.append(own.get("positions", alone))
            features.append(Features(tensors))
        return Encoded(ids=ids, positions=positions, features=features)


@pytest.mark.parametrize("pictures", [False, True])
def test_a_conversation_that_is_written_anew_reaches_vllm_as_it_is(pictures, monkeypatch):
    roles = Roles("qwen2_5_vl")
    model = roles.model
    monkeypatch.setattr(model.tokenizer, "chat_template", model.tokenizer.chat_template.replace(*FORGETS))
    stand_in = StandIn(model)
    monkeypatch.setattr(module, "VllmProcess", lambda *_, **__: stand_in)
    options = VllmOptions(python="python", tolerance=1e6)
    theirs = VllmEngine(roles, options, path=model.path, batch_size=8, seed=0)
    game = Shows(opening=pictures, pictures=pictures, history="template")
    asked = prompts()
    job = ResponseJob.groups(asked, 2, purpose="rollout", update=1, sampling=SAMPLING)
    found, said = Dialogues(theirs, game).sample(job)
    wanted, same = Dialogues(LanguageEngine(roles, batch_size=256, seed=0), game).sample(job)
    theirs.close()

    assert stand_in.asked == 3  # once for each turn
    assert [one.full_text for one in said] == [one.full_text for one in same]
    assert len(unfolded(found)) > len(found)  # what was thought before is gone
    for name in ("ids", "mask", "positions", "length", "finished"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    torch.testing.assert_close(found.logprob, wanted.logprob, rtol=0, atol=1e-5)
    scores = response_logprobs(model, model.network, found, temperature=SAMPLING.temperature)
    torch.testing.assert_close(scores.logprob, found.logprob, rtol=0, atol=1e-4)


def test_what_the_trainer_has_freed_of_a_gpu_is_given_back_before_vllm_needs_it(monkeypatch):
    done: list[str] = []
    roles = Roles("qwen2")
    stand_in = StandIn(roles.model)
    answered = stand_in.ask

    def ask(what: str, header: Mapping[str, Any], *given: Any) -> Iterator[Any]:
        done.append(header["do"])
        if header["do"] == "rest":
            yield {"resting": True}, {}
        else:
            yield from answered(what, header, *given)

    monkeypatch.setattr(stand_in, "ask", ask)
    monkeypatch.setattr(module, "VllmProcess", lambda *_, **__: done.append("start") or stand_in)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("give back"))
    options = VllmOptions(python="python", tolerance=1e6, sleep=True)
    engine = VllmEngine(roles, options, path=roles.model.path, batch_size=8, seed=0)
    engine.publish(0)
    engine.rest()
    engine.publish(1)
    engine.close()
    assert [what for what in done if what != "score"] == ["give back", "start", "load", "rest", "give back", "load"]
