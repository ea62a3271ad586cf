"""Unified models draw token by token: images of their class, under one distribution in sampler, trainer and by hand."""

from dataclasses import replace

import torch
from transformers import AutoModelForMultimodalLM

from burnish.config import load
from burnish.language.decoders import decode
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.tasks import assemble
from tests.golden.runs import run_of
from tests.support.tiny_run import burnish


def test_images_log_probs_gradients_and_exports_are_those_of_the_library(files):
    run = run_of(files, "language", "grpo image tokens")
    run.train("steps=1", "model.lora=null", "rollout.save={every: 1}")
    assert len([*run.output.glob("samples/*/00?.png"), *run.output.glob("validation/000001/pictures/*.png")]) == 8 + 3
    burnish("export", run.output, "--output", files / "exported-images")
    after, before = map(AutoModelForMultimodalLM.from_pretrained, (files / "exported-images", files / "janus"))
    moved = [name for name, one in after.named_parameters() if not torch.equal(one, before.get_parameter(name))]
    assert {name.split(".")[1][:10] for name in moved} == {"language_m", "generation"}, "towers stay as they are"
    burnish("sample", run.output, "a red fox", "--count", 1, "--output", files / "drawn-tokens")
    assert (files / "drawn-tokens" / "000-00.png").is_file()
    assembly = assemble(load(str(run.recipe), [*run.options, "model.lora=null"]), trains=True)
    roles, algorithm, model = assembly.roles, assembly.config.algorithm, assembly.roles.model
    network, how, scored = model.network, model.network.generation_config, assembly.source.rollout(1)
    prompts, own = scored.trace.prompts, []
    for fast in (True, False):  # by Burnish's own decoder, and by the class's cache
        model.capabilities = replace(model.capabilities, fast=fast)
        greedy = decode(model, network, prompts.table, [0, 1], [1, 2], Sampling(max_new_tokens=16, temperature=0))
        for row, ids in enumerate(prompts.table.ids):
            asked = {"inputs": (ids - model.codes)[None], "attention_mask": torch.ones_like(ids)[None]}
            drawn = network.generate(**asked, generation_mode="image", do_sample=False)
            assert [*greedy.ids[row].tolist(), True] == [*drawn[0].tolist(), greedy.finished[row]]
    for index, codes in zip(prompts.index, scored.trace.ids, strict=True):
        words = prompts.table.ids[index] - model.codes
        kept = (words == how.bos_token_id) | (words == how.generation_kwargs["boi_token_id"])
        rows = network.get_input_embeddings()(torch.stack([words, words.where(kept, torch.tensor(how.pad_token_id))]))
        drawn = network.prepare_embeddings_for_image_generation(codes[None, :-1].expand(2, -1))
        states = network.model.language_model(inputs_embeds=torch.cat([rows, drawn], 1)).last_hidden_state
        given, without = network.model.generation_head(states[:, len(words) - 1 :])
        own.append((without + 2 * (given - without)).log_softmax(-1).gather(1, codes[:, None])[:, 0])
    for layout in ("padded", "packed", "shared"):
        found = response_logprobs(model, network, scored.trace, temperature=1.0, layout=layout).logprob
        torch.testing.assert_close([found, torch.stack(own)], [scored.trace.logprob] * 2, rtol=0, atol=1e-5)
    batch, _ = algorithm.compute_advantages(algorithm.compute_logprobs(scored, roles))
    loss = sum(algorithm.loss(part, roles).total for part in algorithm.micro_batches(batch, 64)) / algorithm.size(batch)
    weights = [one for one in network.parameters() if one.requires_grad]
    expected = torch.autograd.grad(-(torch.stack(own) * batch.advantage).mean(), weights, allow_unused=True)
    torch.testing.assert_close(torch.autograd.grad(loss, weights, allow_unused=True), expected, rtol=1e-3, atol=1e-6)
