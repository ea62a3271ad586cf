"""Sampling with vLLM: a plain engine in its place gets what vLLM would get; runs learn what they learn without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from burnish.options.language import LanguageLoraOptions
from burnish.options.vllm import VllmOptions, sends_adapter
from burnish.tasks.language.vllm.apart.burnish_vllm.inputs import Prompt
from burnish.tasks.language.vllm.environment import APART, CHECK
from burnish.tasks.language.vllm.process import START
from tests.support.forked import forked
from tests.support.processes import alive
from tests.support.tiny_run import ROOT, SEEING, TinyRun, burnish

PYTHON = ROOT / "tests" / "support" / "fake_vllm" / "python"
REAL = os.environ.get("BURNISH_VLLM_PYTHON")
SHORT = ["algorithm=grpo", "steps=1", "validation.before=false", "validation.every=null"]
TWICE = ["algorithm=grpo", "steps=2", "trainer.epochs=1"]
GAME = [
    "algorithm=grpo", "environment.name=function", "environment.path=examples/grid_game.py:GridGame",
    "environment.max_turns=3", "environment.max_length=400", "environment.history=template",
    "rewards.environment.weight=1", "steps=1",
]  # fmt: skip


@pytest.fixture
def vllm(files, tmp_path, monkeypatch):
    """Run a model with vLLM, which has a fault; and what vLLM was asked."""
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_VLLM_LOG", str(log))

    def run(model, options, *, fault="", status=0, **vllm):
        monkeypatch.setenv("FAKE_VLLM", fault)
        given = json.dumps({"python": str(PYTHON)} | vllm)
        made = TinyRun(files, "language", model, *options, "rollout.engine=vllm", f"rollout.vllm={given}", name="vllm")
        with forked(lambda words, _: words[0] == str(PYTHON)):
            said = made.train(status=status)
        return made, said, [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    return run


SAME = {
    "pictures": ("qwen2_5_vl", [*TWICE, "rollout.top_k=50", "rollout.min_new_tokens=2"], {"sleep": True}),
    "tiles, after a death": (
        "smolvlm",
        [*TWICE, "model.lora=null"],
        {"fault": "dies once", "restarts": 1},
    ),
    "an adapter, greedy": ("llama", ["algorithm=remax", *TWICE[1:]], {"adapter": "request"}),
    "conversations": ("qwen2_5_vl", GAME, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_a_run_learns_what_it_learns_with_burnish_s_own_engine(case, vllm, files):
    model, options, more = SAME[case]
    own = TinyRun(files, "language", model, *options, name="own")
    own.train()
    made, _, asked = vllm(model, options, **more)
    for mine, theirs in zip(made.metrics, own.metrics, strict=True):
        assert {name: mine[name] for name in theirs} == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    rows = [row for row in made.metrics if "vllm/restarts" in row]
    assert max(row["vllm/logprob_abs_diff_max"] for row in rows) < 1e-4
    assert rows[-1]["vllm/restarts"] == (case == "tiles, after a death")
    told = {each["what"] for each in asked}
    assert ("sleep" in told) == (case == "pictures")
    adapters = [(one["settings"]["target_modules"], one["settings"]["r"]) for one in asked if one["what"] == "adapter"]
    assert len(set(map(str, adapters))) == (case == "an adapter, greedy")
    assert {kind for each in asked for kind in each.get("media", {})} == (set() if model == "llama" else {"image"})
    start = asked[0]["arguments"]
    assert start["load_format"] == ("auto" if adapters else "dummy")
    assert (start["dtype"], start.get("max_lora_rank")) == ("float32", 8 if adapters else None)


def test_vllm_sees_nothing_of_the_trainer_s_environment(vllm, monkeypatch):
    for name, value in (("PYTORCH_ALLOC_CONF", "expandable_segments:True"), ("VLLM_CACHE_ROOT", "/tmp/cache")):
        monkeypatch.setenv(name, value)
    _, _, asked = vllm("llama", SHORT, devices="3", max_model_len=64, arguments={"swap_space": 1})
    told = asked[0]["environment"]
    assert (told["PYTHONPATH"], told["CUDA_VISIBLE_DEVICES"]) == (str(APART), "3")
    assert (told.get("PYTORCH_ALLOC_CONF"), told["VLLM_CACHE_ROOT"]) == (None, "/tmp/cache")
    assert (asked[0]["arguments"]["swap_space"], asked[0]["arguments"]["max_model_len"]) == (1, 64)


FAULTS = {
    "old": ["vllm.inputs.mm_input", "vllm.lora.request"],
    "no memory": ["no memory is left"],
    "breaks": ["a kernel is missing"],
    "dies": ["signal 9", "these were my last words"],
    "hangs": ["1.5 s"],
    "keeps weights": ["rollout.vllm.tolerance"],
    "keeps prompts": ["old weights"],
    "more weights": ["extra.weight"],
    "other tokens": ["other tokens"],
    "loses": ["lost"],
    "no adapters": ["rollout.vllm.adapter=folded"],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_vllm_fails_at_ends_the_run_and_is_named(fault, vllm):
    more = {"adapter": "request"} if fault == "no adapters" else {"timeout": 1.5} if fault == "hangs" else {}
    with pytest.raises(RuntimeError) as failed:
        vllm("llama", SHORT, fault=fault, restarts=0, **more)
    assert [name for name in FAULTS[fault] if name not in str(failed.value)] == []


def test_a_run_that_is_to_stop_waits_for_no_answer(vllm, tmp_path):
    def stop():
        end = time.monotonic() + 60
        while time.monotonic() < end and '"sample"' not in (tmp_path / "log").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    (tmp_path / "log").touch()
    threading.Thread(target=stop, daemon=True).start()
    vllm("llama", SHORT, fault="hangs", status=75)


def test_a_python_without_vllm_is_named(vllm):
    _, said, _ = vllm("llama", SHORT, python="/no/python", status=2)
    assert "rollout.vllm.python" in said.message
    with pytest.raises(RuntimeError, match="'vllm'"):
        vllm("llama", SHORT, python=sys.executable)


def test_what_is_made_for_vllm_is_checked_where_it_is_made(tmp_path):
    (tmp_path / "vllm.py").write_text("__version__ = '0.1'\n")
    command = [sys.executable, "-c", CHECK, str(APART)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, timeout=60)
    assert done.returncode
    assert "vllm.EngineArgs" in done.stderr


def test_the_worker_ends_with_its_parent():
    """Although it holds both ends of its connection, so that only its parent's absence can tell it."""
    code = f"""
import subprocess, sys, os, socket
a, b = socket.socketpair()
kept = os.dup(a.fileno()); os.set_inheritable(kept, True)
child = subprocess.Popen([sys.executable, "-c", {START!r}, str(b.fileno()), str(os.getpid())],
                         pass_fds=[b.fileno(), kept], env=os.environ | {{"PYTHONPATH": {str(APART)!r}}})
print(child.pid, flush=True)
os._exit(0)
"""
    pid = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60).stdout.split()[0])
    end = time.monotonic() + 20
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(pid)


@pytest.mark.parametrize(
    ("adapter", "lora", "dtype", "sent"),
    [
        ("auto", LanguageLoraOptions(rank=4), "bfloat16", True),
        ("auto", LanguageLoraOptions(rank=4), "float32", False),  # folding rounds nothing off there
        ("auto", LanguageLoraOptions(dora=True), "bfloat16", False),
        ("auto", LanguageLoraOptions(modules_to_save=["lm_head"]), "bfloat16", False),
        ("auto", LanguageLoraOptions(vision=True), "bfloat16", False),
        ("auto", LanguageLoraOptions(rank=1024), "bfloat16", False),
        ("auto", None, "bfloat16", False),
        ("request", LanguageLoraOptions(rank=4), "float32", True),
        ("folded", LanguageLoraOptions(rank=4), "bfloat16", False),
    ],
)
def test_an_adapter_is_sent_alone_where_folding_it_would_round_it_off(adapter, lora, dtype, sent):
    assert sends_adapter(adapter, lora, dtype) == sent
    assert not list(VllmOptions(python="p", adapter=adapter).complaints(fire_temperature=None, lora=lora))


IMAGE, VIDEO = 90, 91


def prompt(ids, **media):
    arrays = {"ids": np.asarray(ids)}
    for kind, (pixels, grid) in media.items():
        arrays |= {kind: pixels, f"{kind}_grid": np.asarray(grid)}
    return Prompt({kind: {"image": IMAGE, "video": VIDEO}[kind] for kind in media}, arrays)


def test_each_image_takes_its_own_places_and_is_known_by_its_content():
    pixels = np.arange(32 * 2, dtype=np.float32).reshape(32, 2)
    # 2 x 4 and 4 x 6 patches, of which 4 are a token; something stands between tokens of the second one
    ids = [1, IMAGE, IMAGE, 2, 3, IMAGE, IMAGE, 4, IMAGE, IMAGE, IMAGE, IMAGE, 5]
    two = prompt(ids, image=(pixels, [[1, 2, 4], [1, 4, 6]]))
    assert [places.tolist() for places in two.ranges["image"]] == [[1, 2], [5, 6, 8, 9, 10, 11]]
    assert len(set(two.names["image"])) == 2
    ids, pixels = [IMAGE, IMAGE, 2], pixels[:8]
    one, same = prompt(ids, image=(pixels, [[1, 2, 4]])), prompt(ids, image=(pixels.copy(), [[1, 2, 4]]))
    other, turned = prompt(ids, image=(pixels + 1, [[1, 2, 4]])), prompt(ids, image=(pixels, [[1, 4, 2]]))
    assert one.key == same.key
    assert len({each.key for each in (one, other, turned)}) == 3
    still = (np.zeros((4, 2), dtype=np.float32), [[1, 2, 2]])
    film, picture = prompt([VIDEO, 1, IMAGE], video=still, image=still), prompt([VIDEO, 1, IMAGE], image=still)
    assert film.key == prompt([VIDEO, 1, IMAGE], image=still, video=still).key != picture.key


WIDER = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "num_hidden_layers": 2,
}  # fmt: skip
VISION = {
    "qwen2_vl": {"embed_dim": 64, "hidden_size": 64}, "qwen2_5_vl": {"hidden_size": 64, "out_hidden_size": 64},
    "qwen3_vl": {"hidden_size": 64, "out_hidden_size": 64}, "smolvlm": {"hidden_size": 64},
}  # fmt: skip


def wide(files, family):
    """A tiny model with attention heads of 32 numbers: vLLM has no kernels for narrower ones."""
    folder = files / f"wide-{family}"
    burnish("tiny", family, folder)
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    text |= {name: value for name, value in WIDER.items() if name in text or name == "head_dim"}
    text.pop("layer_types", None)
    if "mrope_section" in (text.get("rope_parameters") or {}):
        text["rope_parameters"] |= {"mrope_section": [6, 5, 5], "mrope_interleaved": family == "qwen3_vl"}
    if family in SEEING:
        config["vision_config"] |= VISION[family]
    (folder / "config.json").write_text(json.dumps(config))
    kind = AutoModelForImageTextToText if family in SEEING else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = kind.from_config(AutoConfig.from_pretrained(folder))
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3 if "embed" in name or "lm_head" in name else 0.1)
    network.save_pretrained(folder)
    return folder.name


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="BURNISH_VLLM_PYTHON names no Python with vLLM")
@pytest.mark.parametrize("adapter", ["folded", "request"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_vl", "qwen3_vl", "smolvlm", "llama", "qwen2"])
def test_vllm_itself_writes_what_the_trainer_scores_alike(family, adapter, files):
    """Greedy responses are those of Burnish's own decoder; every sync's log-probs are the trainer's."""
    data = "seen" if family in SEEING else "read"
    options = [f"data.train_files={files}/{data}/prompts.jsonl", "algorithm=grpo", "validation.temperature=0"]
    own = TinyRun(files, "language", wide(files, family), *options, "steps=1", name="own")
    own.train()
    settings = {"python": REAL, "enforce_eager": True, "kv_cache_gb": 0.06, "max_model_len": 512, "adapter": adapter}
    given = ["rollout.engine=vllm", f"rollout.vllm={json.dumps(settings)}"]
    made = TinyRun(files, "language", f"wide-{family}", *options, *given, name="real")
    made.train()
    assert made.metrics[0] == pytest.approx(own.metrics[0], rel=1e-3, abs=1e-4)
    assert max(row["vllm/logprob_abs_diff_max"] for row in made.metrics if "vllm/restarts" in row) < 1e-4
