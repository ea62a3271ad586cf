"""Unified models draw token by token: images of their class, under one distribution in sampler, trainer and by hand."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForMultimodalLM

from burnish.config import load
from burnish.language.decoders import decode
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.tasks import assemble
from tests.golden.runs import run_of
from tests.support.optional import seldom
from tests.support.tiny_run import burnish

PARTS = ("embeddings", "aligner", "head")  # that draw, beside the decoder


def by_hand(model, prompt, codes):
    """Guided log-probs [T] of an image's codes, by the library's own parts: one row with its words, one without."""
    network, how = model.network, model.network.generation_config
    words = prompt - model.codes
    kept = (words == how.bos_token_id) | (words == how.generation_kwargs["boi_token_id"])
    rows = network.get_input_embeddings()(torch.stack([words, words.where(kept, torch.tensor(how.pad_token_id))]))
    drawn = network.prepare_embeddings_for_image_generation(codes[None, :-1].expand(2, -1))
    states = network.model.language_model(inputs_embeds=torch.cat([rows, drawn], 1)).last_hidden_state
    given, without = network.model.generation_head(states[:, len(words) - 1 :])
    return (without + model.guidance * (given - without)).log_softmax(-1).gather(1, codes[:, None])[:, 0]


@pytest.mark.parametrize("scale", [2.0, *seldom(1.0)])
def test_images_log_probs_and_gradients_are_those_of_the_library(scale, files):
    run = run_of(files, "language", "grpo image tokens")
    assembly = assemble(load(str(run.recipe), [*run.options, "model.lora=null"]), trains=True)
    roles, algorithm, model = assembly.roles, assembly.config.algorithm, assembly.roles.model
    model.guidance = scale
    prompts = assembly.engine.encode(list(assembly.train_prompts)).table
    for fast in (True, False):  # by Burnish's own decoder, and by the class's cache
        model.capabilities = replace(model.capabilities, fast=fast)
        greedy = decode(model, model.network, prompts, [0, 1], [1, 2], Sampling(max_new_tokens=16, temperature=0))
        assert greedy.finished.all()
        for row, ids in enumerate(prompts.ids[:2] if scale > 1 else ()):
            asked = {"inputs": (ids - model.codes)[None], "attention_mask": torch.ones_like(ids)[None]}
            drawn = model.network.generate(**asked, generation_mode="image", do_sample=False, guidance_scale=scale)
            assert greedy.ids[row].tolist() == drawn[0].tolist()
    scored = assembly.source.rollout(1)
    trace, table = scored.trace, scored.trace.prompts
    own = torch.stack([by_hand(model, table.table.ids[i], ids) for i, ids in zip(table.index, trace.ids, strict=True)])
    for layout in ("padded", "packed", "shared"):
        found = response_logprobs(model, model.network, trace, temperature=1.0, layout=layout).logprob
        torch.testing.assert_close(torch.stack([found, own]), trace.logprob.expand(2, -1, -1), rtol=0, atol=1e-5)
    batch, _ = algorithm.compute_advantages(algorithm.compute_logprobs(scored, roles))
    loss = sum(algorithm.loss(part, roles).total for part in algorithm.micro_batches(batch, 64)) / algorithm.size(batch)
    weights = [one for one in model.network.parameters() if one.requires_grad]
    expected = torch.autograd.grad(-(own * batch.advantage).mean(), weights, allow_unused=True)
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_a_run_keeps_images_and_exports_what_transformers_loads(files):
    run = run_of(files, "language", "grpo image tokens")
    run.train("steps=1", "model.lora=null", "rollout.save={every: 1}", "validation.save={}")
    assert len([*run.output.glob("samples/*/00?.png"), *run.output.glob("validation/000001/pictures/*.png")]) == 8 + 3
    burnish("export", run.output, "--output", files / "exported")
    exported, untrained = map(AutoModelForMultimodalLM.from_pretrained, (files / "exported", files / "janus"))
    before = dict(untrained.named_parameters())
    learned = {name for name, one in exported.named_parameters() if not torch.equal(one, before[name])}
    assert {name.split(".")[1] for name in learned} == {"language_model", *(f"generation_{x}" for x in PARTS)}
    burnish("sample", run.output, "a red fox", "--count", 1, "--output", files / "drawn")
    assert (files / "drawn" / "000-00.png").is_file()
