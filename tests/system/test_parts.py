"""Parts of runs: surrogates by name, plugins, options that are read, recordings, copies, trackers, learned rewards."""

from __future__ import annotations

import gzip
import json
import math
import sys
from importlib.util import find_spec
from typing import Any

import pytest
from safetensors.torch import load_file

from burnish.config.language import LanguageConfig
from burnish.config.run_folder import STEP
from burnish.config.text import fields
from tests.support.equality import same
from tests.support.options import options_of
from tests.support.runs import last_state
from tests.support.scorers import checkpoint, tiny_reward
from tests.support.shown import ROOT, blocks
from tests.support.tiny_run import TinyRun, burnish
from tests.support.tracked import wandb_history

ONCE_MORE = ["gmpo", "cispo", "sapo", "{name: gspo, clip: 1e-6}"]


@pytest.mark.parametrize(
    "surrogate",
    ["gspo", "{name: cpgd, drift_coef: 0.1}", "reinforce",
     *(pytest.param(one, marks=pytest.mark.thorough) for one in ONCE_MORE)],
)  # fmt: skip
def test_pictures_by_a_surrogate_of_responses(files, surrogate):
    name = "".join(letter for letter in surrogate if letter.isalnum())
    run = TinyRun(
        files, "generators", "sd3", "algorithm=flow_grpo", f"algorithm.surrogate={surrogate}", name=f"surrogates/{name}"
    )
    run.train()
    row = run.metrics[-1]
    assert row["actor/skipped_updates"] == 0
    assert row["actor/grad_norm"] > 0
    if surrogate != "reinforce":
        assert row["actor/ratio_mean"] != 1.0  # the second step of an update is away from the old policy
        assert 0 <= row["actor/pg_clipfrac"] <= 1
    if "1e-6" in surrogate:
        assert row["actor/pg_clipfrac"] > 0


@pytest.mark.parametrize("algorithm", ["flow_grpo", "diffusion_nft"])
def test_pictures_by_another_advantage(files, algorithm):
    more = [f"algorithm={algorithm}", "algorithm.advantage=leave_one_out", "rewards.brightness.weight=0.01"]
    run = TinyRun(files, "generators", "sd3", *more, name=f"advantages/{algorithm}")
    run.train("steps=1")
    assert run.metrics[-1]["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-5)


def test_responses_by_rewards_one_by_one(files):
    """Two rewards: what is learned differs from what their sum teaches."""
    found = {}
    for how in ("sum", "each", "gdpo"):
        run = TinyRun(
            files, "language", "llama", "algorithm=grpo", f"algorithm.advantage_aggregation={how}",
            "rewards.even={name: function, path: '{files}/rewards.py:even', weight: 0.5}", name=f"aggregation/{how}",
        )  # fmt: skip
        run.train("steps=1")
        found[how] = run.metrics[-1]
    assert len({row["actor/grad_norm"] for row in found.values()}) == 3
    assert len({row["critic/rewards/mean"] for row in found.values()}) == 1


PAGES = [ROOT / "docs" / f"{name}.md" for name in ("extending", "own_reward", "own_algorithm")]
SHOWN = {block.title: block.text for page in PAGES for block in blocks(page) if block.title.endswith(".py")}
DRAWING = [
    "rollout.n=2", "ema.decay=0.5", "plugins=[redness.py, tidy_sd3.py, my_method.py]", "algorithm=plain_steps",
    "algorithm.scale=3", "model.family=tidy_sd3", "rewards.redness={power: 2, least: 0.01}",
    "trainer.mini_batch_size=null", "trainer.epochs=1",
]  # fmt: skip
SEEING = [
    "plugins=[brevity.py, tidy_qwen.py, guessing.py, plain_tokens.py, short.py, squared.py]",
    "algorithm=plain_tokens", "algorithm.kl.kind=squared", "algorithm.advantage={name: length_penalised, price: 0.02}",
    "model.family=tidy_qwen2_5_vl", "rewards.brevity={length: 20, unfinished: 0.1}", "environment.name=guessing",
    "rewards.environment.weight=1", "trainer.mini_batch_size=null", "trainer.epochs=1",
]  # fmt: skip


@pytest.mark.parametrize(
    ("half", "model", "options", "watched"),
    [
        ("generators", "sd3", DRAWING, "redness"),
        pytest.param("language", "qwen2_5_vl", SEEING, "brevity", marks=pytest.mark.thorough),
    ],
    ids=["drawing", "seeing"],
)
def test_plugins_that_pages_show_train_are_resumed_and_opened(
    files, tmp_path, monkeypatch, half, model, options, watched
):
    assert len(SHOWN) == 10
    for name, code in SHOWN.items():
        assert code.count("\n") < 40, name
        (tmp_path / name).write_text(code)
    (tmp_path / "elsewhere").mkdir()
    run = TinyRun(files, half, model, name=f"plugins/{half}")
    given = ["train", run.recipe, *options, f"output_dir={tmp_path / 'run'}"]
    monkeypatch.setattr("tests.support.tiny_run.ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    burnish(*given, "steps=1")
    burnish(*given, "steps=2")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["training/global_step"] for row in rows] == [0, 1, 2]
    assert any(f"/{watched}/" in name for name in rows[-1])
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert watched in burnish("eval", "../run").out
    burnish("report", "../run")


# whoever reads these checks options, copies them or writes them down, and does nothing by them
CHECKS = ("/burnish/config/", "/burnish/options/", "/pydantic/", "dataclasses.py")
# what these runs don't read: sections of several processes, trackers and other engines, and what their tests look at
ELSEWHERE = (
    "profiler.roles", "profiler.ranks", "profiler.worker", "profiler.controller", "profiler.max_entries", "ema.",
    "model.lora.revision", "model.tokenizer_revision", "checkpoint.copy_keep", "checkpoint.wait", "rollout.engine",
    "rollout.n", "rollout.vllm.", "trainer.rollouts_per_update", "trainer.max_skipped_updates", "scoring.merge",
    "scoring.max_failures", "scoring.max_failure_share", "plugins", "validation.suite_prompts", "pipeline.",
    "sharding.", "pools.", "ray.", "trackers.",
    *(f"{section}optimizer.{name}" for section in ("", "critic.")
      for name in ("warmup_steps", "warmup_ratio", "schedule_updates")),
)  # fmt: skip
MUON = [
    f"{section}.{option}" for section in ("optimizer", "critic.optimizer")
    for option in ("name=muon", "schedule=cosine", "min_lr=1e-6")
]  # fmt: skip
READING = {
    "own": [
        "algorithm=ppo", "mixing.normalise.floor=0.1", "data.max_prompt_length=60", "data.overlong=filter",
        "ema.decay=0.5", "ptx={train_files: '{data}/responses.jsonl', batch_size: 1}", "rollout.save.prompts=1",
        "profiler.steps=[1]", "trackers.tensorboard=true", "validation.save.prompts=1",
        "data.val_files={data}/prompts.jsonl", *MUON,
    ],
    "shared": [
        "algorithm=ppo", "critic.trunk=shared", "rollout.filter_groups.max_num_gen_batches=2",
        "model.quantization.weights=fp8_cast",
    ],
}  # fmt: skip


def test_every_option_is_read_by_something_that_does_not_only_check_it(files, tmp_path, monkeypatch):
    options, seen = options_of(LanguageConfig), set[tuple[type, str]]()

    def recording(kind: type) -> Any:
        names = set(fields(kind))

        def read(self: Any, name: str) -> Any:
            if name in names and type(self) is kind:
                file = sys._getframe(1).f_code.co_filename
                if not any(part in file for part in CHECKS):
                    seen.add((kind, name))
            return object.__getattribute__(self, name)

        return read

    for kind in {kind for kind, _ in options.values()}:
        monkeypatch.setattr(kind, "__getattribute__", recording(kind), raising=False)
    asked = ["What?", [{"role": "user", "content": "Which?"}], "Why? " * 20, "Who?"]
    records = [json.dumps({"prompt": prompt, "response": "y"}) + "\n" for prompt in asked]
    (tmp_path / "asked.jsonl").write_text("".join(records))
    for name, given in READING.items():
        more = [*given, f"data.train_files={tmp_path / 'asked.jsonl'}", "checkpoint.keep_last=1"]
        run = TinyRun(files, "language", "llama", *more, name=f"options/{name}")
        run.train("steps=1")
    unread = {path for path, option in options.items() if option not in seen}
    beside = {path for path in unread if path.startswith(tuple(one for one in ELSEWHERE if one.endswith(".")))}
    assert unread - beside == {one for one in ELSEWHERE if not one.endswith(".")}


def test_recording_changes_nothing(files):
    more = ["algorithm=flow_grpo", "validation.every=1", "validation.max_prompts=1"]
    recorded, plain = (TinyRun(files, "generators", "sd3", *more, name=name) for name in ("recorded", "plain"))
    plain.train()
    recorded.train("steps=1")  # and a run goes on when it is recorded from now on
    said = recorded.train("profiler.steps=[2]", "profiler.record_shapes=true").out
    assert recorded.metrics == plain.metrics
    assert last_state(recorded.output) == last_state(plain.output)
    assert not (plain.output / "profiles").exists()
    (trace,) = [path for path in (recorded.output / "profiles").rglob("*") if path.is_file()]
    assert trace.relative_to(recorded.output).as_posix() == "profiles/update-00000002/local-0.json.gz"
    with gzip.open(trace, "rt") as opened:
        names = {event["name"] for event in json.load(opened)["traceEvents"]}
    timed = json.loads((recorded.output / "metrics.jsonl").read_text().splitlines()[2])
    phases = {name.removeprefix("timing_s/") for name in timed if name.startswith("timing_s/")}
    assert {"step", "gen", "reward", "old_log_prob", "adv", "update_actor", "publish"} <= names & phases
    assert str(trace.parents[1]) in said


def test_a_lost_machine_costs_nothing_that_was_copied(files, tmp_path):
    there = f"file://{tmp_path}/there"
    copies = [f"checkpoint.copy_to={there}", "checkpoint.copy_keep=1", f"resume={there}"]
    here, other = (
        TinyRun(files, "generators", "sd3", "algorithm=flow_grpo", "checkpoint.every=1", name=f"copied/{name}")
        for name in ("here", "other")
    )
    here.train(*copies, "checkpoint.export=merged", "steps=2")
    assert [path.name for path in (tmp_path / "there" / "checkpoints").iterdir()] == ["00000002"]
    assert sorted(path.name for path in (here.output / "exported").iterdir()) == ["00000001", "00000002"]
    burnish("export", here.output, "--output", tmp_path / "by_hand")
    name = "transformer/diffusion_pytorch_model.safetensors"
    same(load_file(here.output / "exported" / "00000002" / name), load_file(tmp_path / "by_hand" / name))

    other.train(*copies)
    here.train()
    assert other.metrics == here.metrics
    for file in ("manifest.json", "state.json"):
        one, two = (run.output / "checkpoints" / "00000003" / file for run in (other, here))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: pip install -e '.[wandb]'")
def test_a_run_that_goes_on_is_one_curve_in_trackers(files):
    more = ["checkpoint.every=1", "validation.every=1", "trackers.wandb.mode=offline", "trackers.tensorboard=true"]
    run = TinyRun(files, "generators", "sd3", "algorithm=flow_grpo", *more, name="tracked")
    for steps in (1, 2, 2):  # the last time there is nothing to do
        run.train(f"steps={steps}")
    rows = wandb_history(run.output)
    lines = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    assert len({name for name, _ in rows}) == 1
    assert [row["_step"] for _, row in rows] == [line[STEP] for line in lines] == [0, 1, 2]
    for (_, row), line in zip(rows, lines, strict=True):
        numbers = {name: value for name, value in line.items() if value is not None}
        assert {name: row[name] for name in numbers} == pytest.approx(numbers)
        assert row["val/samples/count"] == 2
    assert json.loads((run.output / "trackers" / "tensorboard.json").read_text())["step"] == 2


FOLLOWED = ("pickscore", "hpsv2", "aesthetic", "clip", "imagereward")


def scorer(name: str, weight: float) -> str:
    """An option that brings a tiny checkpoint."""
    given: dict[str, Any] = {"path": str(checkpoint(name)), "weight": weight}
    if name in ("pickscore", "hpsv2", "imagereward"):
        given["tokenizer"] = None
    if name == "aesthetic":
        given["head"] = tiny_reward(name).head
    return f"rewards.{name}={json.dumps(given)}"


def test_draft_follows_learned_rewards(files):
    more = ["rewards.brightness=null", "trainer.mini_batch_size=null", "trainer.epochs=1", "algorithm.last_steps=2"]
    scorers = [scorer(name, 0.1) for name in FOLLOWED]
    run = TinyRun(files, "generators", "sd3", "algorithm=draft", *more, *scorers, name="followed")
    run.train("steps=2")
    steps = run.metrics[1:]
    assert len(steps) == 2
    for step in steps:
        assert math.isfinite(step["actor/reward"])
        assert step["actor/grad_norm"] > 0
        assert step["actor/reward"] == pytest.approx(step["critic/rewards/mean"], rel=0.05, abs=0.05)
        assert all(math.isfinite(step[f"critic/{name}/mean"]) for name in FOLLOWED)


@pytest.mark.thorough
def test_learned_rewards_score_in_a_process_of_their_own(files):
    scorers, found = [scorer("pickscore", 1.0), scorer("imagereward", 0.0)], []
    for count in (1, 0):
        run = TinyRun(files, "generators", "sd3", "algorithm=flow_grpo", *scorers, name=f"processes{count}")
        run.train(f"scoring.processes={count}", "steps=1")
        found.append(run.metrics[-1])
    for name in ("rewards", "pickscore", "imagereward"):
        assert found[0][f"critic/{name}/mean"] == pytest.approx(found[1][f"critic/{name}/mean"], rel=1e-5)
