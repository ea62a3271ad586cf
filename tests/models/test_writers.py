"""What a part of a pipeline writes before it draws: tokens and denoising steps are the actions of one sample."""

import json

import pytest
import torch

from burnish.diffusion.engine import FlowEngine, FlowJob
from burnish.diffusion.pipeline.writing import write
from burnish.diffusion.roles import FlowRoles
from burnish.registry import lookup
from burnish.types.rollout import Denoising, Scored, Scores
from burnish.utils import random
from tests.support.generators import Generator

WRITERS = {"glm-image": "vision_language_encoder", "ernie-image-rewritten": "pe"}
TEXTS, SIZE = ["a red fox", "a red fox", "two apples on the table"], {"height": 64, "width": 64}


@pytest.mark.parametrize("name", WRITERS)
def test_tokens_are_those_of_the_class_and_images_those_of_the_pipeline(name):
    ours = Generator(name, guidance=2.0, rollout=SIZE, networks=["transformer", WRITERS[name]])
    model, keys = ours.model, [("row", i) for i in range(3)]
    asked = ours.asked(*TEXTS, check=False)
    one, _ = model.write(ours.network, asked.select([2]), keys[2:], 1)
    asked, logprobs = model.write(ours.network, asked, keys, 2)
    written, alone = asked.written, model.pipeline
    assert one.written[0] == written[2] != written[1], "a sample depends on its neighbours"
    found = model.token_logprobs(ours.network, asked)
    torch.testing.assert_close(found[found != 0], torch.cat(logprobs), rtol=0, atol=1e-4)
    images = ours.images(asked, ours.draw(asked, ours.start(asked)))
    for row, (text, ids) in enumerate(zip(TEXTS, written, strict=True)):
        if name == "glm-image":  # whose first 256 tokens are those of a preview
            call = {"prompt": text, "prior_token_ids": alone._upsample_token_ids(torch.tensor(ids[256:260]), 2, 2)}
        else:
            text = alone.pe_tokenizer.decode(ids, skip_special_tokens=True).strip()
            call = {"prompt": text, "use_pe": False, "negative_prompt": "grey"}
        call |= SIZE | {"num_inference_steps": 4, "guidance_scale": 2.0, "output_type": "pt"}
        drawn = alone(**call, generator=torch.Generator().manual_seed(random.key("row", row))).images
        torch.testing.assert_close(images[row : row + 1], drawn, rtol=0, atol=1e-4)
    part, question = model.networks[WRITERS[name]], model._question(asked)
    likeliest = part.generate(**question.inputs, max_new_tokens=12, do_sample=False)[0, -12:]
    question.settings.top_k, question.settings.max_new_tokens = 1, 12
    assert list(write(part, question, keys[:1], torch.float32)[0][0]) == likeliest.tolist()


@pytest.mark.parametrize("networks", [["transformer", "pe"], ["pe"]])
def test_one_advantage_moves_both_kinds_of_action_as_a_loop_by_hand_does(networks):
    ours, algorithm = Generator("ernie-image-rewritten", networks=networks), lookup("flow algorithm", "flow_grpo")()
    roles = FlowRoles(ours.model, algorithm.needs(), None, guidance=1.0, micro_batch_size=2, on_policy=True, seed=0)
    prompts, sample = [ours.prompt(text) for text in (*TEXTS, TEXTS[2])], torch.arange(4)
    rows = {"prompts": prompts, "group": sample // 2, "sample": sample % 2, "update": 1}
    job = FlowJob(**rows, purpose="rollout", recording=algorithm.recording())
    trace = Denoising.cat([part for _, part, _ in FlowEngine(roles, ours.rollout, seed=0).sample(job)])
    scores, reads = Scores.given([[0.1], [0.4], [0.3], [0.2]], {"r": 1.0}), ours.model.pipeline.pe_tokenizer
    scored = Scored(**rows, trace=trace, scores=scores, version=0, seed=0)
    batch, _ = algorithm.compute_advantages(algorithm.compute_logprobs(scored, roles))
    steps, value = trace.logprob.shape[1], 0.0
    assert steps == (3 if "transformer" in networks else 0)
    for row, prompt in enumerate(prompts):
        own, ids = trace.select([row]).steps(), list(trace.conditioning.written[row])
        asked = [{"role": "user", "content": json.dumps({"prompt": prompt.text, "width": 32, "height": 32})}]
        start = reads(reads.apply_chat_template(asked, tokenize=False), return_tensors="pt").input_ids
        every = ours.model.networks["pe"](torch.cat([start, torch.tensor([ids])], 1)).logits[0, start.shape[1] - 1 : -1]
        tokens = (every / 0.6).log_softmax(-1)[range(len(ids)), ids]  # at the pipeline's temperature
        value -= tokens.mean() * max(steps, 1) * batch.token_advantage[row]
        if steps:
            logprob = algorithm.step(own, roles.policy).logprob(own.next_state, "gaussian")
            value -= (logprob * batch.token_advantage[row]).sum()
    total = sum(algorithm.loss(part, roles).total for part in algorithm.micro_batches(batch, 3))
    weights = [one for one in ours.network.parameters() if one.requires_grad]
    found = torch.autograd.grad(total / algorithm.size(batch), weights)
    expected = torch.autograd.grad(value / (4 * max(steps, 1)), weights)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
    assert sum(float(one.abs().max()) > 1e-5 for one in found) > len(weights) / 2
