"""What a part of a pipeline writes before it draws: tokens and denoising steps are the actions of one sample."""

import json

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from burnish.diffusion.engine import FlowEngine, FlowJob
from burnish.diffusion.pipeline.writing import write
from burnish.diffusion.roles import FlowRoles
from burnish.diffusion.steps import transition
from burnish.registry import lookup
from burnish.types.rollout import Denoising, Scored, Scores
from burnish.utils import random
from tests.support.generators import Generator

WRITERS = {"glm-image": "vision_language_encoder", "ernie-image-rewritten": "pe"}
TEXTS, SIZE = ("a red fox", "a red fox", "two apples on the table"), {"height": 64, "width": 64}


def drawn_alone(pipeline, text, ids, row):
    """What diffusers alone draws from tokens."""
    if hasattr(pipeline, "pe_tokenizer"):
        rewritten = pipeline.pe_tokenizer.decode(ids, skip_special_tokens=True).strip()
        given = {"prompt": rewritten, "use_pe": False, "negative_prompt": "grey"}
    else:  # 256 tokens are those of a preview
        codes = pipeline._upsample_token_ids(torch.tensor(ids[256:260]), 2, 2)
        given = {"prompt": text, "prior_token_ids": codes}
    given |= {"num_inference_steps": 4, "guidance_scale": 2.0, "output_type": "pt"} | SIZE
    return pipeline(**given, generator=torch.Generator().manual_seed(random.key("row", row))).images


@pytest.mark.parametrize("name", WRITERS)
def test_tokens_are_those_of_the_class_and_images_those_of_the_pipeline(name):
    ours = Generator(name, guidance=2.0, rollout=SIZE, networks=["transformer", WRITERS[name]])
    model, keys = ours.model, [("row", i) for i in range(3)]
    asked = model.condition([ours.prompt(text) for text in TEXTS], ours.size)
    one, _ = model.write(ours.network, asked.select([2]), keys[2:], 1)
    asked, logprobs = model.write(ours.network, asked, keys, 2)
    written = asked.table.written
    assert len(set(written)) == 3
    assert one.table.written[0] == written[2], "a sample depends on its neighbours"
    with torch.no_grad():
        found = model.token_logprobs(ours.network, asked.rows())
    torch.testing.assert_close(found, pad_sequence(logprobs, batch_first=True), rtol=0, atol=1e-4)
    ours.verify(asked)
    images = ours.images(asked, ours.draw(asked, ours.start(asked)))
    for row, text in enumerate(TEXTS):
        expected = drawn_alone(model.pipeline, text, written[row], row)
        torch.testing.assert_close(images[row : row + 1], expected, rtol=0, atol=1e-4)
    part, question = model.networks[WRITERS[name]], model._question(asked.rows())
    likeliest = part.generate(**question.inputs, max_new_tokens=12, do_sample=False)[0, -12:]
    question.settings.top_k, question.settings.max_new_tokens = 1, 12
    ((ids, _),) = write(part, question, keys[:1], torch.float32)
    assert list(ids) == likeliest.tolist()


def by_hand(ours, text, ids):
    """Log-probs [T] of a rewritten prompt by one forward over all tokens, at the pipeline's temperature of 0.6."""
    reads, said = ours.model.pipeline.pe_tokenizer, json.dumps({"prompt": text, **{"width": 64, "height": 64}})
    asked = reads.apply_chat_template([{"role": "user", "content": said}], tokenize=False)
    start = reads(asked, return_tensors="pt").input_ids
    logits = ours.model.networks["pe"](torch.cat([start, torch.tensor([ids])], 1)).logits[0, start.shape[1] - 1 : -1]
    return (logits / 0.6).log_softmax(-1)[range(len(ids)), list(ids)]


@pytest.mark.parametrize("networks", [["transformer", "pe"], ["pe"]])
def test_one_advantage_moves_both_kinds_of_action_as_a_loop_by_hand_does(networks):
    """Tokens of a sample together weigh as much as its steps; where the denoiser is frozen, no step is an action."""
    ours = Generator("ernie-image-rewritten", rollout=SIZE, networks=networks)
    algorithm = lookup("flow algorithm", "flow_grpo")()
    how = {"guidance": 1.0, "micro_batch_size": 2, "on_policy": True, "seed": 0}
    roles = FlowRoles(ours.model, algorithm.needs(), None, **how)
    prompts = [ours.prompt(text) for text in (*TEXTS, TEXTS[2])]
    rows = {"prompts": prompts, "group": torch.tensor([0, 0, 1, 1]), "sample": torch.tensor([0, 1, 0, 1])}
    job = FlowJob(**rows, purpose="rollout", update=1, recording=algorithm.recording())
    trace = Denoising.cat([part for _, part, _ in FlowEngine(roles, ours.rollout, seed=0).sample(job)])
    scores = Scores.given([[0.1], [0.4], [0.3], [0.2]], {"r": 1.0})
    scored = Scored(**rows, trace=trace, scores=scores, update=1, version=0, seed=0)
    batch, _ = algorithm.compute_advantages(algorithm.compute_logprobs(scored, roles))
    parts = list(algorithm.micro_batches(batch, 3))
    total = sum(algorithm.loss(part, roles).total for part in parts) / algorithm.size(batch)
    steps, value = trace.logprob.shape[1], 0.0
    assert steps == (3 if "transformer" in networks else 0)
    for row, prompt in enumerate(rows["prompts"]):
        own, ids = trace.select([row]).steps(), trace.conditioning.rows().written[row]
        credit = batch.token_advantage[row]
        value = value - credit * by_hand(ours, prompt.text, ids).mean() * max(steps, 1)
        if steps:
            velocity = ours.model.predict(ours.network, own.state, own.time, own.conditioning.rows(), guidance=1.0)
            given = {"noise": 0.7, "t_max": own.time_max, "share": own.share}
            step = transition("sde", velocity, own.state, own.time, own.time_next, **given)
            value = value - credit * step.logprob(own.next_state, "gaussian").sum()
            assert (batch.advantage[row] == credit).all()
    weights = [one for one in ours.network.parameters() if one.requires_grad]
    found = torch.autograd.grad(total, weights, allow_unused=True)
    expected = torch.autograd.grad(value / (4 * max(steps, 1)), weights, allow_unused=True)
    assert sum(one is not None and float(one.abs().max()) > 1e-6 for one in found) > len(weights) / 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
