"""Forecasts beside counted runs: what a run on fake tensors holds, phase by phase, is what one on real ones holds."""

from __future__ import annotations

from functools import partial

import pytest

from burnish.forecast.phases import LOAD
from burnish.forecast.published import Published
from burnish.forecast.ranks import pretend_ranks
from burnish.training.ranks import SINGLE_RANK
from tests.forecast.counted import counted_on, foretold, language
from tests.support.rank_runs import together
from tests.support.tiny_run import burnish

NEAR = 0.1  # a forecast's relative error
thorough, cluster = pytest.mark.thorough, pytest.mark.cluster
SMALL = [
    "algorithm=flow_grpo", "data.train_batch_size=4", "rollout.n=4", "rollout.batch_size=4",
    "rollout.num_inference_steps=5", "trainer.mini_batch_size=null", "trainer.micro_batch_size=4", "validation.n=1",
    "validation.max_prompts=8", "validation.reference_guidance=null",
]  # fmt: skip
FULL, BF16 = ["model.lora=null"], ["model.dtype=bfloat16"]
KL = ["algorithm.kl_coef=0.1"]  # a reference, which samples are compared with gathered, and steps sharded
# samples of a suite are larger than the run's, the baseline has guidance, and full batches are waited for
BESIDE = [
    "validation.suites=[quickstart]", "validation.suite_prompts=4", "rollout.width=16", "validation.every=0",
    "validation.reference_guidance=3.0", "rollout.filter_groups.max_num_gen_batches=2",
]  # fmt: skip
RECOMPUTED = "model.gradient_checkpointing=true"
RUNS = {
    "evaluations": (1, BESIDE), "full-bf16-recomputed": (1, [*FULL, *BF16, RECOMPUTED]),
    "candidates": (1, ["rollout.candidates={n: 8, num_inference_steps: 3}"]), "lora-bf16": (1, BF16),
    "nf4": (1, [*BF16, "model.quantization.weights=nf4", RECOMPUTED]),
    "int8": (1, [*BF16, "model.quantization.weights=int8", RECOMPUTED]),
    "fp8": (1, [*BF16, "model.quantization.weights=fp8", RECOMPUTED]),
    "full-kl-2": (2, [*FULL, *KL]), "lora-bf16-2": (2, BF16), "minis-2": (2, [*FULL, *KL, "trainer.mini_batch_size=2"]),
    "lora-4": (4, []),
}  # fmt: skip


def ranks(count):
    return ["runtime=ray", f"pools.train.processes={count}"] if count > 1 else []


def near(real, fake, left_out=(LOAD,)):
    """Every phase is, but for loading: on a CPU mapped files count, which take no memory of a GPU."""
    assert fake.keys() == real.keys()
    shown = {name: (peak.total / 2**20, fake[name].total / 2**20) for name, peak in real.items()}
    for name in real.keys() - set(left_out):
        assert fake[name].total == pytest.approx(real[name].total, rel=NEAR), (name, shown)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "full-bf16-recomputed" else thorough) for name in RUNS]
)
def test_a_generator_s_forecast_equals_a_counted_run(name, tmp_path):
    size, options = RUNS[name]
    library = {"nf4": "bitsandbytes", "int8": "torchao", "fp8": "torchao"}.get(name, "torch")
    pytest.importorskip(library, reason="needs burnish[quantization]")
    own = {option.partition("=")[0] for option in options}
    given = [*(one for one in SMALL if one.partition("=")[0] not in own), *options, *ranks(size)]
    real, fake = counted_on(size, "quickstart", given, tmp_path), foretold(size, "quickstart", given)
    near(real, fake)
    for phase, peak in real.items():
        assert fake[phase].wire == pytest.approx(peak.wire, rel=1e-3), "bytes that come from other ranks"


def test_a_plan_needs_no_data_and_no_adapter(tmp_path):
    """Pictures are made up; the adapter to go on from has no memory of its own."""
    absent = [
        "data.train_files=nowhere.jsonl", "data.val_files=nowhere.jsonl", "model.lora.path=nowhere",
    ]  # fmt: skip
    assert "activations" in burnish("plan", "quickstart", "algorithm=sft", *absent).out


@thorough
def test_a_mixture_of_experts_is_forecast(tmp_path):
    burnish("tiny", "qwen3_moe", tmp_path)
    few = ["data.train_batch_size=2", "rollout.n=2", "trainer.mini_batch_size=null", f"model.path={tmp_path}"]
    burnish("plan", "qwen25_vl/grpo", *few, "model.dtype=float32", "rollout.max_new_tokens=8")


ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def model(folder, *, hidden=128, layers=3, words=512):
    """A Qwen2.5-VL of any size, without weights."""
    heads = hidden // 32
    text = {
        "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers, "vocab_size": words,
        "num_attention_heads": heads, "num_key_value_heads": max(heads // 4, 1), "max_position_embeddings": 4096,
        "rope_parameters": ROPE | {"mrope_section": [4, 6, 6]}, "tie_word_embeddings": False,
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": hidden,
        "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1],
    }  # fmt: skip
    written(folder / "model", "qwen2_5_vl", text, vision, 3136)


def recurrent(folder):
    """A Qwen3.5, most of whose layers are recurrent: its class has a cache of its own."""
    text = {
        "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "rope_parameters": ROPE | {"mrope_section": [3, 3, 2], "partial_rotary_factor": 0.25},
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 128,
        "patch_size": 16, "num_position_embeddings": 64,
    }  # fmt: skip
    written(folder / "model", "qwen3_5", text, vision, 4096)


def written(folder, kind, text, vision, shortest):
    size = {"shortest_edge": shortest, "longest_edge": 1 << 20}
    processor = {"patch_size": vision["patch_size"], "temporal_patch_size": 2, "merge_size": 2, "size": size}
    config = {"text_config": text, "vision_config": vision}
    if "tie_word_embeddings" in text:
        config["tie_word_embeddings"] = False
    about = {"model_type": kind, "weights": 0, "config": config, "processor": {"image_processor": processor}}
    Published("a small one", "config.json", about).write(folder)


PPO = ["algorithm={name: ppo, kl: {route: loss, kind: k3, coef: 0.01}}", "critic.optimizer.lr=1e-5"]
FLOAT, LORA = ["model.dtype=float32"], ["model.lora.rank=8"]
SETTINGS = {"full float32": FLOAT, "full": [], "ppo": PPO, "lora float32": [*FLOAT, *LORA], "lora": LORA,
            "lora ppo": [*PPO, *LORA]}  # fmt: skip
LARGER = {"hidden": 768, "layers": 8, "words": 16384}  # 85 M weights
OF_RANKS = {"hidden": 256, "layers": 4, "words": 4096}


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        ("ppo", 1, {"words": 4096}), pytest.param("lora", 1, {"words": 4096}, marks=thorough),
        *(pytest.param(name, 1, LARGER, marks=thorough) for name in SETTINGS),
        *(pytest.param(name, size, OF_RANKS, marks=[thorough, cluster]) for name in ("full", "lora") for size in (2,)),
    ],
)  # fmt: skip
def test_a_language_model_s_forecast_is_what_a_real_run_holds(tmp_path, name, size, shape):
    model(tmp_path, **shape)
    work = partial(language, SETTINGS[name])
    real = work(SINGLE_RANK, tmp_path) if size == 1 else together(work, tmp_path, size=size)[0]
    with pretend_ranks(size) as of:
        near(real, work(of, tmp_path, fake=True), left_out=())


@thorough
def test_a_class_with_a_cache_of_its_own_is_what_a_real_run_holds(tmp_path):
    """A forecast decodes three tokens, the real run all of them; while it loads, that compares what the class can."""
    recurrent(tmp_path)
    near(*(language(FLOAT, SINGLE_RANK, tmp_path, fake=fake) for fake in (False, True)))
