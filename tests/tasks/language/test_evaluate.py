"""Runs that learn from responses of the user, alone or beside rewards: whole sessions on the second quickstart."""

from __future__ import annotations

import json

import pytest
import torch

from burnish.config import load
from burnish.tasks import assemble
from burnish.utils.errors import ConfigError, UserError
from tests.support.language_runs import ASSETS, SMALL, assembly_of, saved, trained, weights

OFFLINE = [one for one in SMALL if not one.startswith("rollout.n=")]
PAIRS = ["algorithm=dpo", "algorithm.online=false", f"data.train_files={ASSETS}/preferences.jsonl"]
JUDGED = ["algorithm=kto", "algorithm.online=false", f"data.train_files={ASSETS}/unpaired.jsonl"]
SFT = ["algorithm=sft", "algorithm.online=false", f"data.train_files={ASSETS}/supervised.jsonl"]
PTX = f"ptx={{train_files: '{ASSETS}/supervised.jsonl', batch_size: 3}}"


@pytest.mark.parametrize(
    ("overrides", "metric"),
    [
        ([*OFFLINE, *SFT], "actor/sft_loss"),
        ([*OFFLINE, *PAIRS], "rewards/margins"),
        ([*OFFLINE, *JUDGED], "actor/kto_loss"),
        ([*SMALL, "algorithm=grpo", PTX, "trainer.mini_batch_size=4"], "actor/ptx_loss"),
    ],
    ids=["sft", "dpo", "kto", "ptx"],
)
def test_a_resumed_run_goes_on_bit_by_bit(overrides, metric):
    whole = assembly_of(*overrides)
    before = weights(whole)
    trained(whole, 1, 1)
    state = saved(whole.state_dict())
    rows = trained(whole, 2, 3)
    assert (weights(whole) - before).abs().max() > 0
    resumed = assembly_of(*overrides)
    resumed.load_state_dict(state)
    again = trained(resumed, 2, 3)
    assert torch.equal(weights(resumed), weights(whole))
    assert [row[metric] for row in again] == [row[metric] for row in rows]
    assert rows[0][metric] != rows[1][metric]
    for name, value in whole.ema.average.items():
        assert torch.equal(value, resumed.ema.average[name])
    with whole.trained_weights():
        assert not torch.equal(weights(whole), weights(resumed))
    assert torch.equal(weights(whole), weights(resumed))


def test_pairs_are_counted_in_pairs_and_tokens():
    assembly = assembly_of(*OFFLINE, *PAIRS)
    batch = assembly.source.collect(1)
    assert len(batch) == 4
    assert len(batch.answers.trace) == 8
    row = trained(assembly, 1, 1)[0]
    assert row["train/pairs"] == 4
    assert row["response_length/max"] <= 12
    assert row["perf/total_num_tokens"] > 8 * row["response_length/mean"]


def records(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"data.train_files={path}"


QUESTION = {"prompt": "What?", "answer": "4"}


def test_bad_records_are_refused_with_their_lines_before_weights_load(tmp_path):
    file = tmp_path / "bad.jsonl"
    option = records(
        file,
        QUESTION | {"chosen": "4", "rejected": "5"},
        QUESTION | {"chosen": "4"},
        QUESTION | {"chosen": "4", "rejected": "4"},
    )
    assembly = assemble(load("vlm_quickstart", [*OFFLINE, *PAIRS[:2], option]))
    with pytest.raises(UserError, match=r"(?s)bad.jsonl:2: has no rejected.*bad.jsonl:3: has the same text"):
        assembly.check_data()
    assert "roles" not in vars(assembly)


def test_what_is_too_long_is_refused_or_left_out_and_never_cut(tmp_path):
    long = QUESTION | {"response": "<answer>4</answer>" * 5}
    option = records(tmp_path / "long.jsonl", QUESTION | {"response": "4"}, long)
    with pytest.raises(UserError, match=r"(?s)1 of 2 records.*data.overlong=filter.*rollout.max_new_tokens is 12"):
        assembly_of(*OFFLINE, *SFT[:2], option)
    kept = assembly_of(*OFFLINE, *SFT[:2], option, "data.overlong=filter")
    assert kept.source.collect(1).answers.trace.length.tolist() == [2] * 4
    with pytest.raises(UserError, match="2 of 2 records"):
        assembly_of(*OFFLINE, *SFT[:2], option, "data.overlong=filter", "data.max_prompt_length=3")
    beside = f"ptx={{train_files: {tmp_path / 'long.jsonl'}}}"
    with pytest.raises(UserError, match="1 of 2 records"):
        assembly_of(*SMALL, "trainer.mini_batch_size=null", beside)


def test_prompts_that_are_validated_on_must_be_judgeable(tmp_path):
    option = records(tmp_path / "free.jsonl", {"prompt": "What?", "response": "4"})
    assert assembly_of(*OFFLINE, *SFT[:2], option).train_prompts
    with pytest.raises(UserError, match="answer"):
        assembly_of(*OFFLINE, *SFT[:2], option, "data.val_files=null")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*SFT[:2], PTX], "ptx is given, but sft imitates responses already"),
        (["algorithm=dpo", "algorithm.online=false", "rollout.n=4"], "rollout.n is given, but dpo samples no"),
        (["algorithm=dpo", "rollout.n=8", "trainer.mini_batch_size=12"], "make it a multiple of 8"),
        (["algorithm=dpo", "rollout.n=1"], "rollout.n is 1"),
        (["algorithm=grpo", "data.response_key=said"], "this run reads no responses"),
        (["algorithm=dpo", "algorithm.reference_point=zero"], "reference_point"),
    ],
)
def test_contradictions_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load("vlm_quickstart", overrides)
