"""Runs that learn from pictures with rewards in files: the same as if they had been sampled and scored."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from burnish.config import load
from burnish.tasks import assemble
from burnish.types.columns import read
from burnish.utils.errors import ConfigError, UserError
from tests.support.language_runs import saved, trained, weights

SIZE, PROMPTS = 4, ("nought", "one", "two")
SMALL = [
    "steps=3", "rollout.num_inference_steps=3", "validation.n=1", "scoring.processes=0", "rewards.ocr=null",
    "rewards.jpeg_compressibility.weight=1", "output_dir=unused",
]  # fmt: skip
ALGORITHMS = {"diffusion_nft": [], "awm": [], "crd": [], "dgpo": ["algorithm.kl_coef=0.1"]}


def records(folder, *, each=SIZE):
    """Pictures of noise in files, those of a prompt apart from each other in the list."""
    draw = np.random.default_rng(0)
    found = []
    for number in range(each):
        for prompt in PROMPTS:
            name = f"{prompt}-{number}.png"
            Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8)).save(folder / name)
            found.append({"prompt": prompt, "image": name, "reward": float(draw.random())})
    return found


def written(folder, lines):
    path = folder / "scored.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture
def file(tmp_path):
    return written(tmp_path, records(tmp_path))


def options_of(path, name, prompts=2, n=SIZE):
    return [
        *SMALL, f"algorithm={name}", "algorithm.train_timesteps=2", f"data.train_files={path}", f"rollout.n={n}",
        f"data.train_batch_size={prompts}",
    ]  # fmt: skip


def assembly_of(path, *options, name="diffusion_nft", **sizes):
    given = [*options_of(path, name, **sizes), "algorithm.online=false", "data.fit=centre_crop", *options]
    assembly = assemble(load("quickstart", given))
    assembly.check_data()
    assembly.check()
    return assembly


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns_what_the_same_samples_would_have_taught(name, file):
    """The run that samples is given the same latents and rewards: all else is a function of prompts and seed."""
    given = assembly_of(file, *ALGORITHMS[name], "data.shuffle=false", name=name)
    batch = given.source.collect(1)
    assert [prompt.text for prompt in batch.prompts] == [one for one in PROMPTS[:2] for _ in range(SIZE)]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    expected = [line["reward"] for prompt in PROMPTS[:2] for line in lines if line["prompt"] == prompt]
    assert batch.scores.reward.tolist() == pytest.approx(expected)
    online = [*options_of(file, name), *ALGORITHMS[name], "data.shuffle=false", "data.images_key=none"]
    sampling = assemble(load("quickstart", online))
    sampled = sampling.source.collect(1)
    assert sampled.group.tolist() == batch.group.tolist()
    assert sampled.sample.tolist() == batch.sample.tolist()
    assert [prompt.uid for prompt in sampled.prompts] == [prompt.uid for prompt in batch.prompts]
    same = replace(
        sampled,
        trace=replace(sampled.trace, latents=batch.trace.latents),
        scores=replace(sampled.scores, reward=batch.scores.reward, missing=batch.scores.missing),
    )
    for assembly, collected in ((given, batch), (sampling, same)):
        learned, _ = assembly.workers.credit(assembly.workers.annotate(collected))
        assembly.workers.update(learned, 1)
    assert torch.equal(weights(given), weights(sampling))


def test_a_resumed_run_goes_on_bit_by_bit(file):
    whole = assembly_of(file)
    before = weights(whole)
    rows = trained(whole, 1, 1)
    state = saved(whole.state_dict())
    rows += trained(whole, 2, 3)
    assert (weights(whole) - before).abs().max() > 0
    assert all(row["critic/rewards/group_size"] == SIZE for row in rows)
    assert all(row["perf/total_num_images"] == 2 * SIZE for row in rows)
    resumed = assembly_of(file)
    resumed.load_state_dict(state)
    assert trained(resumed, 2, 3)[-1]["actor/loss"] == rows[-1]["actor/loss"]
    assert torch.equal(weights(resumed), weights(whole))


@pytest.mark.parametrize("name", ["awm", "dgpo"])
def test_ranks_that_share_a_batch_encode_what_they_learn_and_learn_the_same(name, file, monkeypatch):
    assembly = assembly_of(file, "data.shuffle=false", name=name)
    whole = assembly.source.collect(1)
    data = assembly.pictures.learned_by(assembly.engine, shared=True)
    data.check()
    groups = data.drawn(assembly.stream(assembly.records, ()).next_batch(1), update=1, seed=0)
    batch = data.batch(groups, assembly.offline_times, update=1, seed=0)
    encoded, model = [], assembly.engine.model
    encode = model.encode_pictures
    monkeypatch.setattr(model, "encode_pictures", lambda *given: encoded.append(1) or encode(*given))
    rows = [assembly.workers.credit(one)[0].select([0]) for one in (whole, batch)]
    assert not encoded
    plain, shared = (next(row.terms(100)) for row in rows)
    assert len(encoded) == {"awm": 1, "dgpo": SIZE}[name] - 1  # check has encoded the first
    assert torch.equal(shared.noisy, plain.noisy)
    assert torch.equal(shared.value, plain.value)
    assert torch.equal(read(shared.conditioning.rows().tokens), read(plain.conditioning.rows().tokens))


def test_of_more_pictures_than_an_update_takes_some_are_drawn_anew(tmp_path):
    assembly = assembly_of(written(tmp_path, records(tmp_path, each=9)), prompts=3)
    batches = [assembly.source.collect(update) for update in (1, 2)]
    chosen = [set(batch.scores.reward.tolist()) for batch in batches]
    assert [len(batch) for batch in batches] == [12, 12]
    assert chosen[0] != chosen[1]


def test_a_prompt_that_comes_twice_has_other_noise_the_second_time(file):
    batch = assembly_of(file, prompts=4).source.collect(1)
    twice = [i for i, prompt in enumerate(batch.prompts) if prompt.uid == batch.prompts[-1].uid]
    assert batch.sample[twice].tolist() == list(range(2 * SIZE))


def test_a_folder_of_kept_samples_is_such_a_file(tmp_path):
    lines = [
        {"prompt": line["prompt"], "messages": None, "file_name": line["image"], "reward": line["reward"],
         "components": {"ocr": 1.0}, "images": []}
        for line in records(tmp_path)
    ]  # fmt: skip
    written(tmp_path, lines).rename(tmp_path / "metadata.jsonl")
    assert len(assembly_of(tmp_path, prompts=3).source.collect(1)) == 3 * SIZE


def test_a_reward_that_is_missing_is_left_out(tmp_path):
    lines = records(tmp_path)
    lines[0]["reward"] = None
    batch = assembly_of(written(tmp_path, lines), prompts=3).source.collect(1)
    sizes = {prompt.text: 0 for prompt in batch.prompts}
    for prompt in batch.prompts:
        sizes[prompt.text] += 1
    assert sizes == {"nought": SIZE - 1, "one": SIZE, "two": SIZE}


def test_single_pictures_of_prompts_are_compared_with_the_batch(tmp_path):
    path = written(tmp_path, [line | {"prompt": str(10 + i)} for i, line in enumerate(records(tmp_path))])
    assembly = assembly_of(path, "algorithm.advantage=returns", n=1, prompts=6)
    before = weights(assembly)
    trained(assembly, 1, 1)
    assert (weights(assembly) - before).abs().max() > 0
    with pytest.raises(UserError, match=r"no prompt has two pictures .* algorithm.advantage=returns"):
        assembly_of(path)


def changed(lines, **values):
    return [lines[0] | values, *lines[1:]]


def without(lines, name):
    return [{key: value for key, value in line.items() if key != name} for line in lines]


REFUSED = [
    (lambda lines: changed(lines, reward="good"), r"scored.jsonl:1: 'reward' is 'good'; it must be a number"),
    (lambda lines: changed(lines, score=1.0), r"scored.jsonl:1: has 'reward' and 'score'"),
    (lambda lines: without(lines, "reward"), r"scored.jsonl:1: has no reward"),
    (lambda lines: [line | {"reward": None} for line in lines], "no picture has a reward"),
    (lambda lines: lines[:9], r"rollout.n is 4, but no prompt .* more than 3 .* set rollout.n=3"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED, ids=[said[-20:] for _, said in REFUSED])
def test_wrong_records_are_refused_before_weights_load(change, said, tmp_path):
    path = written(tmp_path, change(records(tmp_path)))
    with pytest.raises(UserError, match=said):
        assembly_of(path)


def test_latents_have_no_rewards(tmp_path):
    with pytest.raises(UserError, match="latents have no rewards"):
        assembly_of(tmp_path / "x.safetensors", "data.val_files=burnish:quickstart/test.jsonl")


@pytest.mark.parametrize(("options", "said"), [
    (["algorithm.sample_with=policy"], "algorithm.sample_with is given"),
    (["rollout.trajectories=host"], "learns from pictures with rewards that are given"),
    (["algorithm=dgpo", "algorithm.train_timesteps=2", "trainer.mini_batch_size=6"], "make it a multiple of 4"),
])  # fmt: skip
def test_contradictions_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        load("quickstart", [*SMALL, "algorithm.online=false", "rollout.n=4", *options])
