"""Commands around training: tiny, data, recipes, config, doctor, and check-reward."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
import torch

import burnish as package
from benchmarks.gpu.runs import RUNS, options_of
from benchmarks.gpu.trace import shares
from burnish.commands import doctor
from tests.support.reports import write_lines
from tests.support.tiny_run import burnish

LARGEST = 5 << 20  # bytes of a directory


def test_names_lead_to_one_model(tmp_path):
    names = [line.split()[0].lower() for line in burnish("tiny", "--list").out.splitlines() if len(line.split()) == 3]
    assert len(names) == len(set(names)) > 140
    image = ("StableDiffusionImageVariationPipeline", "sd1.5-variation")
    for given, name in (image, ("Qwen3VLForConditionalGeneration", "qwen3_vl")):
        found = []
        for one in (given, name):
            burnish("tiny", one, tmp_path / one)
            assert sum(path.stat().st_size for path in (tmp_path / one).rglob("*")) < LARGEST
            found.append(sorted(path.relative_to(tmp_path / one) for path in (tmp_path / one).rglob("*")))
        assert found[0] == found[1]
    for given, near in (("wan2.3", "wan2.2"), ("WanVACEPipelin", "WanVACEPipeline"), ("gemma33", "gemma3")):
        assert near in burnish("tiny", given, tmp_path / "none", status=2).message


# tiny


def test_tiny_writes_a_pipeline_and_says_how_it_is_used(tmp_path):
    folder = tmp_path / "model"
    told = " ".join(burnish("tiny", "wan2.2", folder).out.split())
    index = folder / "model_index.json"
    assert json.loads(index.read_text())["transformer_2"] == ["diffusers", "WanTransformer3DModel"]
    assert f"model.path={folder} rollout.height=32 rollout.width=32 rollout.num_frames=5" in told
    assert "--force" in burnish("tiny", "flux", folder, status=2).message
    burnish("tiny", "flux", folder, "--force")
    assert json.loads(index.read_text())["_class_name"] == "FluxPipeline"
    burnish("tiny", "clip", folder, "--force")
    assert not index.exists(), "nothing is left of what was there"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    (tmp_path / "thesis.txt").write_text("years of work")
    burnish("tiny", "flux", tmp_path, "--force", status=2)
    assert (tmp_path / "thesis.txt").exists(), "what is no pipeline is never replaced"


def test_the_same_seed_writes_the_same_weights_and_every_name_is_listed(tmp_path):
    weights = []
    for name, seed in (("first", 5), ("again", 5), ("other", 6)):
        burnish("tiny", "llama", tmp_path / name, "--seed", seed)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]
    told = burnish("tiny", "--list").out
    assert [name for name in ("sd3", "wan2.2", "qwen3_vl", "smolvlm", "llama", "pickscore") if name not in told] == []


# data, recipes, config, doctor


def test_a_file_is_shown_as_a_recipe_reads_it(tmp_path):
    path = tmp_path / "q.jsonl"
    write_lines(path, [{"ask": "2 + 2?", "answer": 4, "mine": [1]}, {"ask": "\x1b[2Jone?", "answer": "1"}])
    shown = burnish("data", "show", path, "--recipe", "vlm_quickstart", "data.prompt_key=ask").out
    assert f"{path}:1\n  user: 2 + 2?\n  answer: 4\n" in shown
    assert '"mine": [1]' in shown
    assert "\\x1b[2Jone?" in shown
    assert "'ask', 'answer', 'mine'" in burnish("data", "show", path, status=2).message
    asked = {"role": "user", "content": "Where?", "name": "Ada"}
    write_lines(path, [{"prompt": [asked], "tools": json.dumps([{"name": "seek", "parameters": {}}])}])
    shown = burnish("data", "show", path, "--recipe", "vlm_quickstart").out
    assert "  user: Where?\n    name: Ada\n  tools: seek\n" in shown
    shown = burnish("data", "show", "vlm_quickstart", "-n", "1").out
    assert "  user: <image><image>What is the sum" in shown
    assert shown.count("  image: ") == 2


def test_config_prints_a_recipe_that_says_what_is_not_here_yet(recipe, tmp_path):
    saved = tmp_path / "saved.yaml"
    for option in ("rollout.n=16", "data.train_files=gone.txt"):
        shown = burnish("config", recipe, option).out
        saved.write_text(shown)
        assert package.load(str(saved)) == package.load(recipe, option)
        missing = "# Before burnish train can start here:\n#   - data.train_files is gone.txt"
        assert (missing in shown) == ("gone" in option)
    lines = burnish("config", recipe, "rollout.n=16").out.splitlines()
    n = next(line for line in lines if line.strip().startswith("n: 16"))
    assert "[default 8]" in n
    assert "[default" not in next(line for line in lines if line.strip().startswith("height:"))
    options = [line for line in lines if ":" in line and not line.endswith(":") and len(line) < 68]
    assert all("#" in line for line in options), "every option is explained"
    changed = re.findall(r"^ *(\w+): [^#\s].*# (.*)", burnish("config", recipe, "--changed").out, re.MULTILINE)
    assert {"n", "rank", "steps"} <= {name for name, _ in changed}
    assert [name for name, words in changed if not words.startswith("[default ")] == []
    shown = burnish("config", recipe, "rollout", "optimizer.lr").out
    assert re.findall(r"^(?:\w+|  lr):", shown, re.MULTILINE) == ["rollout:", "optimizer:", "  lr:"]
    assert "algorithms is not a section" in burnish("config", recipe, "algorithms", status=2).message


def test_recipes_are_listed_in_groups_with_titles():
    told = burnish("recipes").out
    titles = "quickstart", "FLUX.1-dev, with", "flux/awm", "Stable Diffusion 3.5 Medium, with", "sd35/awm"
    assert sorted(titles, key=told.index) == list(titles)
    assert "sd35" not in burnish("recipes", "geometry3k").out


def test_doctor_says_whether_the_quickstart_can_run(monkeypatch):
    said = burnish("doctor").out
    assert "ok" in said
    assert "fail" not in said
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1, used=1, free=1))
    said = burnish("doctor", status=1).out
    assert all(word in said for word in ("fail", "output_dir"))


def test_doctor_warns_of_gpus_that_are_slow_to_reach(monkeypatch):
    found = {"launch_time": 0.1, "copy_speed": 2.0, "device_count": 2, "can_device_access_peer": False}
    for name, value in found.items():
        monkeypatch.setattr(doctor if name in vars(doctor) else torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(doctor, "sum_speed", lambda *_: 1 / 0)
    state, seen, advice = doctor.check_speed()
    assert (state, seen) == ("warn", "a kernel every 0.1 µs, 2.0 GB/s from pinned memory, peer-to-peer does not work")
    assert all(word in advice for word in ("PCIe", "topo", "division by zero"))


@pytest.mark.thorough
def test_processes_of_a_cpu_sum_and_runs_of_make_gpu_have_valid_options(tmp_path):
    assert doctor.sum_speed("cpu", 2) > 0
    for run in RUNS:
        assert package.load(run.recipe, *options_of(run, tmp_path, tmp_path, 8, "python")).model.device == "cuda"


def test_a_trace_tells_what_bounds_a_phase():
    work = ("gen user_annotation 0 10", "gemm kernel 0 4", "nccl kernel 2 6", "add kernel 8 9")
    each = [(name, kind, int(at), int(end)) for name, kind, at, end in map(str.split, work)]
    events = [{"ph": "X", "name": name, "cat": kind, "ts": at, "dur": end - at} for name, kind, at, end in each]
    assert shares(events)["gen"] == pytest.approx({"operations": 0.4, "memory": 0.1, "network": 0.2, "launches": 0.3})


# check-reward: a scorer that is right, and what is found in one that isn't


@pytest.mark.parametrize("name", ["clip", "imagereward", "siglip2"])
def test_a_scorer_that_tiny_wrote_passes_and_wrong_pixels_are_found(name, tmp_path, monkeypatch):
    told = burnish("tiny", name, tmp_path / name).out
    assert f"rewards.{name}.path={tmp_path / name}" in told
    given = dict(re.findall(rf"rewards\.{name}\.(\w+)=(\S+)", told))
    own = [f"{option}={value}" for option, value in given.items() if option != "path"]
    words = ["check-reward", name, "--weights", tmp_path / name, *own]
    found = burnish(*words).out
    assert "ok   values" in found
    assert "ok   gradients" in found
    plain = torch.nn.functional.interpolate
    monkeypatch.setattr(torch.nn.functional, "interpolate", lambda *a, antialias, **k: plain(*a, **k))
    assert name != "clip" or "fail gradients" in burnish(*words, status=1).out


def test_an_attack_names_the_cheats_that_score_as_high_as_an_honest_image(tmp_path):
    (tmp_path / "own.py").write_text("def dark(images): return [1 - float(image.mean()) / 255 for image in images]")
    found = burnish("check-reward", "function", f"path={tmp_path}/own.py:dark", "--attack").out
    share, cheats = re.search(r"cheatability ([\d.]+): .* image: (.*)", " ".join(found.split())).groups()
    assert {"black", "searched"} <= set(cheats.split(", "))
    assert "empty" not in cheats
    assert 0 < float(share) < 1
