"""What is recorded of the tokens of responses."""

from __future__ import annotations

import json
import math

import torch

from burnish.language.logprobs import response_logprobs
from burnish.tasks.language.samples import said_tokens, token_columns
from burnish.tasks.language.sampling import rollout_sampling
from tests.support.language_runs import SMALL, assembly_of

OPTIONS = [*SMALL, "trainer.mini_batch_size=null", "rollout.max_new_tokens=6", "validation.max_prompts=2"]


def test_tokens_are_recorded_with_their_entropy(tmp_path):
    assembly = assembly_of(*OPTIONS)
    assembly.evaluate(tmp_path, n=2)
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    entropies = [value for row in rows for value in row["token_entropies"]]
    assert all(len(row["token_entropies"]) == len(row["token_logprobs"]) == len(row["token_texts"]) for row in rows)
    assert all(0 <= value <= math.log(assembly.roles.model.vocabulary) for value in entropies)
    assert max(entropies) > 0


def test_entropy_is_that_of_the_distribution_that_was_sampled_from():
    assembly = assembly_of(*OPTIONS)
    trace, temperature = assembly.source.collect(1).trace, rollout_sampling(assembly.config).scored_at
    said = said_tokens(trace, [3, 1], assembly.engine, temperature)
    scores = response_logprobs(assembly.roles.model, assembly.roles.model.network, trace, temperature=temperature)
    assert said.keys() == {1, 3}
    for row, tokens in said.items():
        chosen = trace.mask[row]
        expected = torch.stack([scores.logprob[row, chosen], scores.entropy[row, chosen]], 1)
        torch.testing.assert_close(torch.tensor([one[1:] for one in tokens]), expected, atol=2e-4, rtol=0)


def test_what_nobody_knows_is_left_out():
    assert token_columns([("a", -1.0, math.nan)]) == {"token_texts": ["a"], "token_logprobs": [-1.0]}
