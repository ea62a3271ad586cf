"""vLLM against the trainer: the same tokens, pixels, weights and log-probs.

It needs an environment of its own (docs/vllm.md), whose Python BURNISH_VLLM_PYTHON names; without it nothing runs.
"""

import os
import signal
from dataclasses import replace

import pytest
import torch

from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.models.lora import adapter_parameters, add_adapters
from burnish.options.language import LanguageLoraOptions
from burnish.options.vllm import VllmOptions
from burnish.tasks.language.dialogues import Dialogues
from burnish.tasks.language.engine import LanguageEngine, ResponseJob
from burnish.tasks.language.vllm import engine as module
from burnish.tasks.language.vllm.engine import VllmEngine
from burnish.tasks.language.vllm.process import VllmDiedError, VllmFailedError
from burnish.utils.errors import UserError
from tests.support.games import Shows
from tests.support.tiny_language import SEEING
from tests.support.wide import Roles, image, prompt, video, wide

PYTHON = os.environ.get("BURNISH_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="BURNISH_VLLM_PYTHON names no Python with vLLM"),
]

NONE, ONE = prompt("What is there?"), prompt(image(1), "What is this?")
SEVERAL = prompt("Compare", image(2), "with", image(3, 24, 16), ".")
FILM = prompt(video(4), "Who comes in?")
PROMPTS = [NONE, ONE, SEVERAL, FILM]
PLAIN = Sampling(max_new_tokens=12, temperature=0.7)


def engine_of(path, roles, lora=None, **more):
    options = VllmOptions(
        python=PYTHON or "", enforce_eager=True, kv_cache_gb=0.06, max_model_len=512, tolerance=1e-4,
        **{"restarts": 0} | more,
    )  # fmt: skip
    return VllmEngine(roles, options, path=path, batch_size=64, seed=3, lora=lora)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return wide(tmp_path_factory.mktemp("model") / "seeing", "qwen2_5_vl")


@pytest.fixture(scope="module")
def started(path):
    made = engine_of(path, Roles(path))
    yield made
    made.close()


@pytest.fixture
def engine(started):
    """The engine with the weights that the model was loaded with, published again where a test has changed them."""
    network = started.model.network
    before = {name: value.clone() for name, value in network.state_dict().items()}
    yield started
    if any(not torch.equal(value, before[name]) for name, value in network.state_dict().items()):
        network.load_state_dict(before)
        started.publish(0)


def job(prompts, sampling=PLAIN, *, n=3, update=1):
    return ResponseJob.groups(prompts, n, purpose="rollout", update=update, sampling=sampling)


def off(engine, completion, temperature):
    """Largest difference between the log-probs that came back and the trainer's."""
    model = engine.model
    with torch.no_grad():
        ours = response_logprobs(model, model.network, completion, temperature=temperature).logprob
    return float((ours - completion.logprob).abs().max())


@pytest.mark.parametrize(
    "asked", [[NONE], [ONE], [SEVERAL], [FILM], PROMPTS], ids=["none", "one", "two", "film", "all"]
)
def test_log_probs_are_the_trainers(engine, asked):
    completion, texts = engine.sample(job(asked))
    assert off(engine, completion, 0.7) < 1e-4
    assert completion.mask.any(1).all()
    assert len(texts) == 3 * len(asked)
    assert engine.metrics["vllm/logprob_abs_diff_max"] < 1e-4


FILTERS = {
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.5},
    "min_p": {"min_p": 0.3},
    "repetition": {"repetition_penalty": 3.0},
    "hot": {"temperature": 4.0},
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_choose_tokens_and_leave_log_probs_alone(engine, name):
    completion, _ = engine.sample(job(PROMPTS, replace(PLAIN, **FILTERS[name])))
    assert off(engine, completion, FILTERS[name].get("temperature", 0.7)) < 1e-4


def test_only_the_likeliest_are_drawn_where_that_is_asked(engine):
    free, _ = engine.sample(job([ONE], n=32))
    few, _ = engine.sample(job([ONE], replace(PLAIN, top_k=2), n=32))
    assert len(few.ids[:, 0].unique()) <= 2 < len(free.ids[:, 0].unique())


def test_greedy_is_what_our_own_decoder_writes(engine):
    sampling = Sampling(max_new_tokens=12, temperature=0.0)
    theirs, _ = engine.sample(job(PROMPTS, sampling, n=1))
    ours, _ = LanguageEngine(engine.roles, batch_size=8, seed=3).sample(job(PROMPTS, sampling, n=1))
    assert torch.equal(theirs.ids, ours.ids)
    assert torch.equal(theirs.positions, ours.positions)
    torch.testing.assert_close(theirs.logprob, ours.logprob, atol=1e-4, rtol=0)


def test_an_environment_answers_and_the_trainer_scores_all_turns_alike(engine):
    game = Shows(max_length=400)
    completion, responses = Dialogues(engine, game).sample(job(PROMPTS[:3]))
    assert all(len(one.dialogue.responses) == 3 and not one.dialogue.error for one in responses)
    assert all(len(one.dialogue.pictures) == 4 for one in responses)  # one before the first turn
    assert off(engine, completion, 0.7) < 1e-4
    greedy = job(PROMPTS[:3], Sampling(max_new_tokens=6, temperature=0.0), n=1)
    theirs, _ = Dialogues(engine, game).sample(greedy)
    ours, _ = Dialogues(LanguageEngine(engine.roles, batch_size=8, seed=3), game).sample(greedy)
    assert torch.equal(theirs.ids, ours.ids)
    assert torch.equal(theirs.positions, ours.positions)
    assert torch.equal(theirs.mask, ours.mask)
    cut, _ = Dialogues(engine, Shows(max_length=40)).sample(job(PROMPTS[:3]))
    assert int(cut.length.max()) <= 40 < int(completion.length.max())
    for row, length in enumerate(cut.length.tolist()):
        assert torch.equal(cut.ids[row, :length], completion.ids[row, :length])


def test_turns_answer_the_conversation_as_it_is_written_anew(engine):
    game, greedy = Shows(history="template"), job(PROMPTS[:3], Sampling(max_new_tokens=6, temperature=0.0), n=1)
    theirs, _ = Dialogues(engine, game).sample(greedy)
    ours, _ = Dialogues(LanguageEngine(engine.roles, batch_size=8, seed=3), game).sample(greedy)
    assert torch.equal(theirs.ids, ours.ids)
    assert torch.equal(theirs.mask, ours.mask)


def test_a_response_depends_on_its_seed_and_not_on_its_neighbours(engine):
    whole, _ = engine.sample(job(PROMPTS))
    again, _ = engine.sample(job(PROMPTS))
    alone, _ = engine.sample(job([SEVERAL]))
    later, _ = engine.sample(job(PROMPTS, update=2))
    assert torch.equal(whole.ids, again.ids)
    assert torch.equal(whole.ids[6:9], alone.ids)
    assert not torch.equal(whole.ids, later.ids)
    assert len({tuple(row) for row in alone.ids.tolist()}) == 3


def test_placeholders_are_never_written(engine):
    head = engine.model.network.lm_head.weight
    with torch.no_grad():
        for token in engine.model.banned.tolist():
            head[token] = 3 * head.mean(0).sign() + head[token]
    engine.publish(1)
    completion, _ = engine.sample(job([NONE, ONE], replace(PLAIN, temperature=50.0), n=64))
    assert not torch.isin(completion.ids[completion.mask], engine.model.banned).any()
    assert off(engine, completion, 50.0) < 1e-4


def test_a_stop_string_ends_a_response_and_stays_in_it(engine):
    free, texts = engine.sample(job([NONE], n=8))
    stop = next(letter for text in texts for letter in text.text[1:] if letter.isascii() and letter.isalnum())
    stopped, texts = engine.sample(job([NONE], replace(PLAIN, stop=(stop,)), n=8))
    assert any(stop in text.text for text in texts)
    for row, (text, length) in enumerate(zip(texts, stopped.length.tolist(), strict=True)):
        assert torch.equal(stopped.ids[row, :length], free.ids[row, :length])
        by_token = int(stopped.ids[row, length - 1]) in engine.model.stop
        assert bool(stopped.finished[row]) == (stop in text.text or by_token)
        assert text.text.count(stop) <= 1


def test_a_stop_token_ends_a_response_but_not_too_early(engine):
    head, end = engine.model.network.lm_head.weight, engine.model.stop[0]
    states = head.mean(0)
    with torch.no_grad():
        head[end] = head[end] + 2 * states.sign()
    engine.publish(1)
    free, _ = engine.sample(job(PROMPTS, replace(PLAIN, temperature=3.0), n=16))
    ended = free.finished
    assert ended.any()
    assert not ended.all()
    last = free.ids.gather(1, free.length[:, None] - 1)[:, 0]
    assert (last[ended] == end).all()
    assert (free.length[~ended] == 12).all()
    late, _ = engine.sample(job(PROMPTS, replace(PLAIN, temperature=3.0, min_new_tokens=6), n=16))
    assert late.finished.any()
    assert (late.length > 6).all()


@pytest.mark.parametrize("part", ["visual", "language_model", "lm_head"])
def test_a_publication_reaches_every_part(engine, part):
    before, _ = engine.sample(job(PROMPTS))
    with torch.no_grad():
        for name, parameter in engine.model.network.named_parameters():
            if part in name:
                parameter.mul_(1.3)
    unpublished, _ = engine.sample(job(PROMPTS))
    engine.publish(1)
    after, _ = engine.sample(job(PROMPTS))
    assert torch.equal(before.ids, unpublished.ids)
    assert off(engine, unpublished, 0.7) > 1e-2
    assert off(engine, after, 0.7) < 1e-4
    assert torch.equal(before.ids[:3], after.ids[:3]) == (part == "visual")
    assert not torch.equal(before.ids[3:], after.ids[3:])


def test_old_weights_and_new_ones_give_what_they_gave(engine):
    before, _ = engine.sample(job(PROMPTS))
    network = engine.model.network
    kept = {name: value.clone() for name, value in network.state_dict().items()}
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.2)
    engine.publish(1)
    engine.sample(job(PROMPTS))
    network.load_state_dict(kept)
    engine.publish(2)
    back, _ = engine.sample(job(PROMPTS))
    assert torch.equal(before.ids, back.ids)
    assert torch.equal(before.logprob, back.logprob)


def test_a_weight_that_keeps_its_old_value_is_found(engine, monkeypatch):
    engine.sample(job(PROMPTS))
    old = engine.model.network.lm_head.weight.clone()
    with torch.no_grad():
        engine.model.network.lm_head.weight.mul_(1.1)
    everything = module.weights_of
    monkeypatch.setattr(module, "weights_of", lambda network: everything(network) | {"lm_head.weight": old})
    with pytest.raises(
        VllmFailedError, match=r"after weight sync v1, vLLM's log-probs differ(.|\n)*rollout\.vllm\.tolerance"
    ):
        engine.publish(1)


def test_a_weight_that_is_not_published_is_found(engine, monkeypatch):
    everything = module.weights_of

    def without(network):
        return {name: value for name, value in everything(network).items() if "layers.1.mlp.down_proj" not in name}

    with monkeypatch.context() as patch:
        patch.setattr(module, "weights_of", without)
        with pytest.raises(VllmFailedError, match="trainer does not publish"):
            engine.publish(1)
    engine.publish(2)


def test_what_does_not_fit_is_refused(engine):
    with pytest.raises(UserError, match=r"but vLLM reads 512; raise rollout\.vllm\.max_model_len"):
        engine.sample(job([NONE], Sampling(max_new_tokens=512)))
    with pytest.raises(UserError, match=r"rollout\.fire_temperature"):
        engine.sample(job([NONE], replace(PLAIN, first_temperature=2.0)))


def test_a_killed_vllm_is_named_and_its_replacement_writes_the_same(engine):
    before, _ = engine.sample(job(PROMPTS))
    with torch.no_grad():
        for parameter in engine.model.network.parameters():
            parameter.mul_(1.1)  # the trainer has gone on: what was published counts
    os.kill(engine._process.process.pid, signal.SIGKILL)
    with pytest.raises(VllmDiedError, match="vLLM ended while it was asked for 12 responses: signal 9"):
        engine.sample(job(PROMPTS))
    engine.options = replace(engine.options, restarts=1)
    with pytest.warns(UserWarning, match="vLLM is started again"):
        after, _ = engine.sample(job(PROMPTS))
    engine.options = replace(engine.options, restarts=0)
    assert torch.equal(before.ids, after.ids)
    assert torch.equal(before.logprob, after.logprob)
    assert engine.restarts == 1


@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ("qwen2_5_vl", True),
        ("qwen2_vl", True),
        ("qwen3_vl", True),
        ("smolvlm", False),
        ("llama", False),
        ("qwen2", True),
    ],
)
def test_every_family_and_tied_heads(tmp_path, family, tied):
    where = wide(tmp_path / family, family, tied=tied)
    made = engine_of(where, Roles(where))
    try:
        asked = [NONE, ONE, SEVERAL, FILM] if family in SEEING else [NONE]
        completion, _ = made.sample(job(asked))
        assert off(made, completion, 0.7) < 1e-4
        with torch.no_grad():
            for parameter in made.model.network.parameters():
                parameter.mul_(1.1)
        made.publish(1)
        completion, _ = made.sample(job(asked))
        assert off(made, completion, 0.7) < 1e-4
    finally:
        made.close()


def test_it_rests_until_the_next_publication_and_samples_as_before(path, monkeypatch):
    # only a GPU's memory can be given back, and without one vLLM refuses the option; it is put to rest all the same
    arguments = VllmEngine._arguments
    monkeypatch.setattr(
        VllmEngine, "_arguments", lambda self, *given: arguments(self, *given) | {"enable_sleep_mode": False}
    )
    engine = engine_of(path, Roles(path), sleep=True, restarts=1)
    try:
        before, _ = engine.sample(job([ONE]))
        for version in (1, 2):
            engine.rest()
            engine.rest()
            with pytest.raises(AssertionError, match="nothing has been published since"):
                engine.sample(job([ONE]))
            if version == 2:
                os.kill(engine._process.process.pid, signal.SIGKILL)
            engine.publish(version)
            after, _ = engine.sample(job([ONE]))
            assert torch.equal(after.ids, before.ids)
    finally:
        engine.close()
    assert engine.restarts == 1


def test_an_adapter_is_added_by_vllm_to_the_model_of_the_directory(path):
    """Two versions: each is compared when it is published, and its log-probs are the trainer's."""
    roles, lora = Roles(path), LanguageLoraOptions(rank=4, targets=["q_proj", "k_proj", "v_proj", "o_proj"])
    network = roles.model.network
    add_adapters(network, lora, ("policy",), seed=0, default_targets=[])
    engine = engine_of(path, roles, lora, adapter="request", restarts=1)
    try:
        for version in range(2):
            with torch.no_grad():
                for weight in adapter_parameters(network, "policy").values():
                    weight.normal_(std=0.2)
            engine.publish(version)
            completion, _ = engine.sample(job(PROMPTS))
            assert off(engine, completion, 0.7) < 1e-4
        os.kill(engine._process.process.pid, signal.SIGKILL)
        again, _ = engine.sample(job(PROMPTS))
        assert torch.equal(again.ids, completion.ids)
        assert engine.restarts == 1
    finally:
        engine.close()
