"""Every metric that the code can write, and that runs do write, is explained."""

import json
import re
from pathlib import Path

import pytest

from burnish.cli import main

ROOT = Path(__file__).parents[1]
NAME = re.compile(
    r'"((?:actor|critic|old_policy|train|perf|timing_s|training|variance_proxy|val-aux|response_length|pipeline)'
    r'/[a-z0-9_]+(?:/[a-z0-9_]+)*)"'
)
INNER = {"actor/skipped", "actor/empty", "actor/ratio_square"}  # turned into others before they are written
GROUPS = {"critic/rewards"}  # of several
FOREIGN = "names.py"  # what other projects call them


def explained() -> set[str]:
    """Names in the page's tables: what stands in backticks, a bare one with the section of the name before it."""
    found = set()
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if not line.startswith("| `"):
            continue
        section = ""
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
            prefix = name.split("/")[0]
            if prefix in {"actor", "critic", "old_policy", "train", "perf", "timing_s", "training", "variance_proxy",
                          "val-aux", "val-core", "response_length", "rollout_corr", "pipeline"}:  # fmt: skip
                section = name.rpartition("/")[0] if prefix != "train" else "train"
                found.add(name)
            else:
                found.add(f"{section}/{name}")
    return found


def test_every_metric_is_explained():
    known = explained()
    written: dict[str, str] = {}
    for file in sorted((ROOT / "burnish").rglob("*.py")):
        if file.name == FOREIGN:
            continue
        for name in NAME.findall(file.read_text()):
            written.setdefault(name, str(file.relative_to(ROOT)))
    assert len(written) > 50
    assert {"critic/rewards/std_mean", "actor/ratio_std", "timing_s/gen", "train/kept_groups"} <= known
    missing = {name: file for name, file in written.items() if name not in known | INNER | GROUPS}
    assert not missing, f"docs/metrics.md does not explain {missing}"


PLACES = re.compile(r"(?<![A-Za-z])(?:NAME|SOURCE|TASK|COLUMN|PHASE|K|N)(?![A-Za-z])")


def patterns() -> list[re.Pattern[str]]:
    """Names in the page as patterns: what is in capitals stands for anything, and so do dots."""
    found: list[re.Pattern[str]] = []
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if not line.startswith("| `"):
            continue
        row: list[str] = []
        section = ""
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
            if name.startswith("/"):  # an ending
                options = [f"{one}{name}" for one in row]
            else:
                section = name.rpartition("/")[0] or section
                row.append(f"{section}/{name.rpartition('/')[2]}")
                options = row[-1:]
            for option in options:
                text = re.escape(option).replace(re.escape("..."), ".+")
                found.append(re.compile(PLACES.sub(".+", text)))
    return found


COMMON = [
    "steps=2", "checkpoint.every=1", "validation.n=1", "validation.max_prompts=2", "trainer.peak_tflops=0.1",
    "scoring.processes=0", "data.train_batch_size=2", "ema.decay=0.9", "optimizer.warmup_steps=0",
]  # fmt: skip
RUNS = {
    "generator": [
        "quickstart", "algorithm=flow_grpo", "algorithm.kl_coef=0.1", "algorithm.best_of=2", "rollout.n=4",
        "algorithm.old_logprob=recompute", "rollout.num_inference_steps=6", "rollout.batch_size=8",
        "trainer.mini_batch_size=4",
    ],
    "language model": [
        "vlm_quickstart", "rollout.n=2", "trainer.mini_batch_size=2", "algorithm.kl={route: reward, coef: 0.1}",
        "algorithm.overlong={buffer: 2}", "algorithm.reward_norm=true", "algorithm.reward_clip=2",
        "algorithm.advantage_clip=2", "algorithm.rollout_correction={}", "algorithm.high_entropy_fraction=0.5",
        "rollout.filter_groups.max_num_gen_batches=2", "rollout.max_new_tokens=6",
    ],
    "value network": [
        "vlm_quickstart", "algorithm=ppo", "rollout.n=1", "trainer.mini_batch_size=null", "rollout.max_new_tokens=6",
        "critic.warmup_updates=0",
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_logged_that_the_page_does_not_know(name, tmp_path):
    recipe, *options = RUNS[name]
    assert main(["train", recipe, *COMMON, *options, f"output_dir={tmp_path / 'run'}"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    known, written = patterns(), sorted({column for row in rows for column in row})
    assert not [column for column in written if not any(one.fullmatch(column) for one in known)]
    asked = {
        "training/epoch",
        "perf/mfu/actor",
        "perf/cpu_memory_gb/gen",
        "timing_s/save_checkpoint",
        "perf/throughput",
    }
    if recipe == "vlm_quickstart":
        asked |= {"global_seqlen/mean", "response/aborted_ratio"}
    assert asked <= set(written)
