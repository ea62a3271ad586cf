"""Sampling with vLLM: a plain engine in its place gets what vLLM would get; runs learn what they learn without it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file
from torch.multiprocessing import reductions
from transformers import AutoConfig, AutoTokenizer

from burnish.config.load import load
from burnish.language.vllm import engine, process
from burnish.language.vllm.apart.burnish_vllm import shared, worker
from burnish.language.vllm.apart.burnish_vllm.inputs import key_of
from burnish.language.vllm.process import APART, START, SharedWeights, through_gpu
from burnish.tasks import assemble
from tests.support.forked import forked
from tests.support.optional import seldom
from tests.support.processes import gone
from tests.support.tiny_run import ROOT, UPDATES, TinyRun, burnish

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
    log.touch()
    monkeypatch.setenv("FAKE_VLLM_LOG", str(log))

    def run(model, options, *, fault="", status=0, **vllm):
        monkeypatch.setenv("FAKE_VLLM", fault)
        log.write_text("")
        given = json.dumps({"python": str(PYTHON)} | vllm)
        made = TinyRun(files, "language", model, *options, "rollout.engine=vllm", f"rollout.vllm={given}", name="vllm")
        with forked(lambda words, _: words[0] == str(PYTHON)):
            said = made.train(status=status)
        return made, said, [json.loads(line) for line in log.read_text().splitlines()]

    return run


@pytest.fixture
def one_gpu(monkeypatch):
    """Trainer and vLLM are on one GPU, whose memory is the CPU's, opened by files in place of CUDA's handles."""
    path = ""

    def shareable(size, device):
        nonlocal path
        path = f"/proc/{os.getpid()}/fd/{os.memfd_create('gpu')}"
        return shared.mapped(path, size)

    for place, name, value in (
        (engine, "place_of", lambda device: "gpu"), (engine, "shareable", shareable), (process, "shareable", shareable),
        (process, "reduce_tensor", lambda memory: (None, (*[None] * 7, path, len(memory)))),
        *((each, "rebuild_cuda_tensor", lambda *handle: shared.mapped(*handle[7:])) for each in (shared, reductions)),
        (torch.accelerator, "current_device_index", lambda: 0), (process, "BUCKET", 10_000),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, value)
    monkeypatch.setenv("FAKE_VLLM_GPU", "gpu")


SAME = {
    "pictures": (
        "qwen2_5_vl", [*TWICE, "data.workers=1", "rollout.top_k=50", "rollout.min_new_tokens=2"], {"sleep": True},
    ),
    "tiles, after a death": ("smolvlm", [*TWICE, "model.lora=null"], {"fault": "dies once", "restarts": 1}),
    "one GPU, after a death": ("llama", [*TWICE, "model.lora=null"], {"fault": "dies once", "restarts": 1}),
    "other GPUs, after a death": ("llama", [*TWICE, "model.lora=null"], {"fault": "dies once", "restarts": 1}),
    "an adapter, greedy": ("llama", ["algorithm=remax", *TWICE[1:]], {"adapter": "request"}),
    "conversations": ("qwen2_5_vl", GAME, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", [*list(SAME)[1:5], *seldom("pictures", "conversations")])
def test_a_run_learns_what_it_learns_with_burnish_s_own_engine(case, vllm, files, request, monkeypatch):
    model, options, more = SAME[case]
    if "GPU" in case:
        request.getfixturevalue("one_gpu")
        if "other" in case:
            monkeypatch.setenv("FAKE_VLLM_GPU", "another")
        monkeypatch.delattr(SharedWeights, "write")  # nothing passes through the CPU
    own = TinyRun(files, "language", model, *options, name="own")
    own.train()
    made, _, asked = vllm(model, options, **more)
    for mine, theirs in zip(made.metrics, own.metrics, strict=True):
        assert {name: mine[name] for name in theirs} == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    rows = [row for row in made.metrics if "vllm/restarts" in row]
    assert max(row["vllm/logprob_abs_diff_max"] for row in rows) < 1e-4
    assert rows[-1]["vllm/restarts"] == ("after a death" in case)
    told = {each["what"] for each in asked}
    assert ("sleep" in told) == (case == "pictures")
    adapters = [(one["settings"]["target_modules"], one["settings"]["r"]) for one in asked if one["what"] == "adapter"]
    assert len(set(map(str, adapters))) == (case == "an adapter, greedy")
    assert {kind for each in asked for kind in each.get("media", {})} == (set() if model == "llama" else {"image"})
    start = asked[0]["arguments"]
    assert start["load_format"] == ("auto" if adapters else "dummy")
    assert (start["dtype"], start.get("max_lora_rank")) == ("float32", 8 if adapters else None)


@pytest.mark.parametrize(("fault", "apart"), [("", False), ("other experts", True)])
def test_the_experts_that_vllm_tells_are_those_that_learn(fault, apart, vllm):
    made, *_ = vllm("qwen3_moe", [*SHORT, "rollout.router_replay=true", "model.lora=null"], fault=fault)
    assert (made.metrics[1]["rollout_corr/logprob_abs_diff_max"] > 1e-3) == apart


def test_vllm_sees_nothing_of_the_trainer_s_environment(vllm, monkeypatch):
    for name, value in (("PYTORCH_ALLOC_CONF", "expandable_segments:True"), ("VLLM_CACHE_ROOT", "/tmp/cache")):
        monkeypatch.setenv(name, value)
    _, _, asked = vllm("llama", SHORT, devices="3", max_model_len=64, arguments={"swap_space": 1})
    told = asked[0]["environment"]
    assert (told["PYTHONPATH"].count(os.pathsep), told["CUDA_VISIBLE_DEVICES"]) == (0, "3")
    assert (told.get("PYTORCH_ALLOC_CONF"), told["VLLM_CACHE_ROOT"]) == (None, "/tmp/cache")
    assert (asked[0]["arguments"]["swap_space"], asked[0]["arguments"]["max_model_len"]) == (1, 64)
    for options, sent in (
        (["model.dtype=bfloat16"], True), (["model.dtype=float32"], False),  # where folding rounds nothing off
        (["model.dtype=bfloat16", "model.lora={dora: true}"], False),
    ):  # fmt: skip
        _, _, asked = vllm("llama", [*SHORT, *options])
        assert any(one["what"] == "adapter" for one in asked) == sent, options


FAULTS = yaml.safe_load(Path(__file__).with_name("vllm_faults.yaml").read_text())


@pytest.mark.parametrize("fault", FAULTS)
def test_what_vllm_fails_at_ends_the_run_and_is_named(fault, vllm):
    more = {"adapter": "request"} if fault == "no adapters" else {"timeout": 1.5} if fault == "hangs" else {}
    with pytest.raises(RuntimeError) as failed:
        vllm("qwen2_5_vl" if fault == "other places" else "llama", SHORT, fault=fault, restarts=0, **more)
    assert [name for name in FAULTS[fault] if name not in str(failed.value)] == []


def test_weights_that_change_on_a_gpu_are_noticed_and_one_that_is_not_shared_is_gone_round(vllm, one_gpu, monkeypatch):
    options, kind, compare = [*SHORT, "model.lora=null"], engine.VllmEngine, engine.VllmEngine._compare
    change = lambda self, network: (compare(self, network), next(network.parameters()).add_(1))  # noqa: E731
    monkeypatch.setattr(kind, "_compare", change)
    with pytest.raises(engine.VllmDiedError, match="no longer here"):
        vllm("llama", options, fault="dies once")
    monkeypatch.setattr(process, "checksum", lambda content: 1)
    with pytest.raises(RuntimeError, match=r"differ .*: checksums 0x1 and"):
        vllm("llama", options)
    monkeypatch.setattr(kind, "_compare", compare)
    monkeypatch.setattr(process, "reduce_tensor", lambda memory: [None, ()])
    with pytest.warns(UserWarning, match="through the CPU's memory"):
        vllm("llama", options)


def test_on_one_gpu_each_side_copies_weights_once_and_sums_them_up_once(one_gpu):
    weights = {f"{n}": torch.randn(n, 16).to(torch.bfloat16 if n % 3 else torch.float32) for n in range(4, 400, 16)}
    buckets, passed = through_gpu(weights, 3, device=torch.device("cpu"), dtype=torch.bfloat16), []
    channel = SimpleNamespace(send=passed.append, recv=lambda: passed.append(next(buckets)) or passed[-1][0])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        arrived = dict(worker.Server._arriving(SimpleNamespace(channel=channel), channel.recv()))
    made, count = [event.name for event in profiled.events()], len(passed) // 2
    assert [number for _, number in passed[::2]] == [answer["checksum"] for answer in passed[1::2]]
    assert all(torch.equal(arrived[name], weights[name].to(torch.bfloat16)) for name in weights)
    assert made.count("aten::clone") == count > 9
    assert made.count("aten::copy_") == len(weights) + count
    assert made.count("aten::bitwise_xor") == 2 * count


def test_weights_are_compared_on_a_prompt_with_media(vllm):
    files = "data.train_files=[{files}/read/prompts.jsonl, {files}/seen/prompts.jsonl]"
    made, _, asked = vllm("qwen2_5_vl", [*SHORT, files])
    assert {len(each["media"]["image"]) for each in asked if each["what"] == "score"} == {1}
    sampler = assemble(load(str(made.recipe), made.options).sampler_config, only_samples=True)  # of a rollout pool
    assert len(sampler._compared().media) == 1


def test_a_run_that_is_to_stop_waits_for_no_answer(vllm, tmp_path):
    def stop():
        end = time.monotonic() + 60
        while time.monotonic() < end and '"sample"' not in (tmp_path / "log").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    vllm("llama", SHORT, fault="hangs", status=75)


def test_a_python_without_vllm_is_named(vllm):
    _, said, _ = vllm("llama", SHORT, python="/no/python", status=2)
    assert "rollout.vllm.python" in said.message
    with pytest.raises(RuntimeError, match="'vllm'"):
        vllm("llama", SHORT, python=sys.executable)


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
    assert gone(pid)


def test_prompts_have_the_names_of_their_media():
    assert len({key_of(ids, names) for ids in ([1, 2], [1, 3]) for names in ((), ("image-a",), ("image-b",))}) == 6


WIDER = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}


def wide(files, family):
    """A tiny model with attention heads of 32 numbers: vLLM has no kernels for narrower ones on a CPU."""
    folder = files / f"wide-{family}"
    burnish("tiny", family, folder)
    config = AutoConfig.from_pretrained(folder)
    text, vision = config.get_text_config(), getattr(config, "vision_config", None)
    for name, value in WIDER.items():
        setattr(text, name, value)
    if family == "gemma3":  # newlines as the published tokenizer has them: vLLM looks them up
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens(["\n" * count for count in range(1, 5)])
        tokenizer.save_pretrained(folder)
        text.vocab_size = len(tokenizer)
    if "mrope_section" in text.rope_parameters:
        text.rope_parameters["mrope_section"] = [6, 5, 5]
    if hasattr(vision, "out_hidden_size"):
        vision.out_hidden_size = text.hidden_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = getattr(transformers, config.architectures[0])(config)
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3 if "embed" in name or "lm_head" in name else 0.1)
    network.save_pretrained(folder)
    if vision is not None and vision.model_type == "siglip_vision_model":  # named as in published folders
        weights = load_file(folder / "model.safetensors")
        named = {name.replace("vision_tower.", "vision_tower.vision_model."): weights[name] for name in weights}
        save_file(named, folder / "model.safetensors", {"format": "pt"})
    return folder.name


KNOWN = {  # adapter, records, and how many of them
    "llama": ("folded", "read", 3), "qwen2": ("request", "read", 3), "qwen2_5_vl": ("request", "seen", 3),
    "qwen3_vl": ("folded", "seen", 3), "internvl": ("folded", "seen", 3),
    "llava_onevision": ("folded", "seen", 2),  # the third has two images, of which vLLM makes other tiles
    "gemma3": ("folded", "read", 3),  # on a CPU vLLM has no attention of images in both directions
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="BURNISH_VLLM_PYTHON names no Python with vLLM")
@pytest.mark.parametrize("family", KNOWN)
def test_vllm_itself_writes_what_the_trainer_scores_alike(family, files, monkeypatch):
    """Greedy responses are those of Burnish's own decoder; every sync's log-probs are the trainer's."""
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # whose compiler takes longer than all the rest
    adapter, kind, count = KNOWN[family]
    data = files / kind / f"first-{count}.jsonl"
    data.write_text("".join((files / kind / "prompts.jsonl").read_text().splitlines(keepends=True)[:count]))
    options = ["algorithm=grpo", "validation.temperature=0", f"data.train_files={data}"]
    own = TinyRun(files, "language", wide(files, family), *options, "steps=1", name="own")
    own.train()
    cache = {"kv_cache_memory_bytes": 64_000_000}
    settings = {"python": REAL, "enforce_eager": True, "arguments": cache, "max_model_len": 512, "adapter": adapter}
    given = ["rollout.engine=vllm", f"rollout.vllm={json.dumps(settings)}"]
    made = TinyRun(files, "language", f"wide-{family}", *options, *given, name="real")
    made.train()
    assert made.metrics[0] == pytest.approx(own.metrics[0], rel=1e-3, abs=1e-4)
    synced = [row["vllm/logprob_abs_diff_max"] for row in made.metrics if "vllm/restarts" in row]
    sampled = [row["rollout_corr/logprob_abs_diff_max"] for row in made.metrics if "actor/loss" in row]
    assert len(synced) >= len(sampled) == UPDATES
    assert max(synced + sampled) < 1e-4
