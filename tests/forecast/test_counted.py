"""Forecasts beside counted runs: what a run on fake tensors holds, phase by phase, is what one on real ones holds."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from burnish.config import load
from burnish.forecast.brief import BACKWARD
from burnish.forecast.counter import BUFFERS
from burnish.forecast.decoding import kept_by_class
from burnish.forecast.fakes import Pretending
from burnish.forecast.forecast import forecast
from burnish.forecast.phases import LOAD, RECEIVE
from burnish.forecast.pretended import made_up_prompts
from burnish.forecast.published import Published
from burnish.forecast.ranks import PretendRanks, pretend_ranks
from burnish.forecast.suites import first_batch
from burnish.language.kept import Kept
from burnish.tasks import assemble
from burnish.tasks.job import Job
from burnish.training.ranks import SINGLE_RANK
from burnish.utils.weights import without_weights
from tests.forecast.counted import counted_on, foretold, language
from tests.support.factory import tiny_flux
from tests.support.games import Shows, play, prompts
from tests.support.rank_runs import together
from tests.support.tiny_run import ROOT, burnish

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


@thorough
def test_a_quantised_base_is_never_on_the_device_in_full():
    phases = foretold(1, "quickstart", [*SMALL, *BF16, "validation.every=null", "model.quantization.weights=int8"])
    assert phases[LOAD].total == phases[LOAD].parts["weights"] == phases["publish"].parts["weights"]


@pytest.mark.parametrize(
    "given", [["algorithm=sft"], pytest.param(["algorithm=diffusion_dpo", "algorithm.online=false"], marks=thorough)]
)
def test_a_forecast_needs_no_data_no_reward_and_no_adapter(given):
    """Pictures are made up; the adapter to go on from and a function of the user have no memory of their own."""
    absent = [
        "data.train_files=nowhere.jsonl", "data.val_files=nowhere.jsonl", "model.lora.path=nowhere",
        "rewards.mine={name: function, path: nowhere.py:mine}",
    ]  # fmt: skip
    (pool,) = forecast(load("quickstart", [*given, *absent])).pools
    assert pool.phases[BACKWARD].parts["activations"] > pool.phases[BACKWARD].parts["weights"]


@thorough
@pytest.mark.parametrize("name", ["hidream", "sd1.5-controlnet", "qwen3_moe"])
def test_models_whose_rows_or_blocks_are_odd_are_forecast(name, tmp_path, monkeypatch):
    """Mixtures of experts by values, whose rows do not go together; and a chain of convolutions, all but alike."""
    burnish("tiny", name, tmp_path / ("model" if name == "qwen3_moe" else "pipeline"))
    few = ["data.train_batch_size=2", "rollout.n=2", "trainer.mini_batch_size=null", f"model.path={tmp_path / 'model'}"]
    if name == "qwen3_moe":
        (pool,) = forecast(load("qwen25_vl/grpo", [*few, "model.dtype=float32", "rollout.max_new_tokens=8"])).pools
    else:
        monkeypatch.syspath_prepend(ROOT / "tools")
        from generator_row import write_recipe

        from burnish.models.tiny import describe

        (pool,) = forecast(load(str(write_recipe(describe(name), tmp_path)))).pools
    assert pool.highest[1].total


@pytest.mark.parametrize(("count", "rows"), [(1, 6), (2, 6), (3, 6), (8, 3)])
def test_the_rank_that_validates_most_is_forecast(count, rows):
    """Four prompts of three samples, six at once; of eight ranks the first may have none."""
    config = load("quickstart", ["validation.n=3", "rollout.batch_size=6"])
    job = Job.groups(made_up_prompts(4), 3, purpose="validation", update=0)
    assert len(first_batch(job, config, PretendRanks(count)).prompts) == rows


OPTIONS = ["algorithm=flow_grpo", "model.lora=null", "rollout.n=2", "scoring.processes=0"]


def total(of, _=None):
    """Of the policy's weights."""
    roles = assemble(load("quickstart", [*OPTIONS, "data.train_batch_size=2"]), of).roles
    with torch.no_grad(), roles.gathered():
        return float(sum(weight.detach().double().sum() for weight in roles.model.network.parameters()))


@cluster
@thorough
def test_what_is_remembered_of_pretended_ranks_is_not_taken_for_real_ones(tmp_path):
    """Processes that are forked from this one would compute with shards of a group that never was."""
    foretold(2, "quickstart", [*OPTIONS, "data.train_batch_size=2"])
    assert together(total, tmp_path) == [total(SINGLE_RANK)] * 2


@cluster
@thorough
def test_ranks_that_split_sequences_are_foretold(tmp_path):
    options = [
        *OPTIONS, f"model.path={tiny_flux(tmp_path, vae=False)}", "rollout.height=64", "rollout.width=64",
        "rollout.max_sequence_length=64", "rollout.num_inference_steps=3", "algorithm.window.size=1",
        "data.train_batch_size=2", "rollout.batch_size=2", "trainer.micro_batch_size=2", *ranks(2),
        "sharding.context_parallel=2",
    ]  # fmt: skip
    real, fake = counted_on(2, "quickstart", options, tmp_path), foretold(2, "quickstart", options)
    near(real, fake, left_out=real.keys() - {"update, forward", "update, backward"})


@thorough
def test_the_rank_that_samples_most_is_forecast_and_groups_of_others_are_others():
    """Two prompts are one for each of two ranks, whose steps are one micro-batch; of three one rank has two.

    Steps that samples of a group took as one are learned once for each group, not once for all ranks.
    """
    given = [*OPTIONS, *ranks(2), "trainer.micro_batch_size=8", "rollout.num_inference_steps=5"]
    found = [foretold(2, "quickstart", [*given, f"data.train_batch_size={count}"]) for count in (2, 3)]
    once, twice = (phases["update, backward"].wire for phases in found)
    assert twice == 2 * once > 0


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


@thorough
def test_validations_of_more_responses_than_updates_have_are_counted(tmp_path):
    model(tmp_path)
    (tmp_path / "longer.yaml").write_text(
        "task: image-text-to-text\nprompts: burnish:vlm_quickstart/heldout.jsonl\nscorers: {exact: {}}\n"
        "responding: {max_new_tokens: 96}\ndata: {max_prompt_length: 160}\n"
    )
    options = ["rollout.batch_size=8", "validation.before=true"]
    suites = [f"validation.suites=[{tmp_path / 'longer.yaml'}]", "validation.suite_prompts=8"]
    found = [language([*options, *more], SINGLE_RANK, tmp_path, fake=True) for more in ([], suites)]
    peaks = [found[0]["sample"].total, *(one["validate"].total for one in found)]
    assert peaks == sorted(set(peaks))


@thorough
def test_a_worker_that_samples_is_loaded_in_the_precision_that_it_rests_in(tmp_path):
    model(tmp_path)
    given = [f"model.path={tmp_path / 'model'}", "runtime=ray", "pools.train.processes=1", "pools.rollout.processes=1",
             "rollout.max_new_tokens=16", "rollout.batch_size=1", "data.train_batch_size=1", "rollout.n=2",
             "trainer.mini_batch_size=null"]  # fmt: skip
    (_, worker), (_, wide) = (forecast(load("qwen25_vl/grpo", [*given, *more])).pools for more in ([], FLOAT))
    assert worker.phases[LOAD].total < 0.7 * wide.phases[LOAD].total
    come = worker.phases[RECEIVE]
    assert come.wire == pytest.approx(come.parts[BUFFERS], rel=0.01)  # which are as large as what is trained: all


@thorough
@pytest.mark.parametrize("make", [model, recurrent])
def test_turns_that_are_kept_are_counted(tmp_path, make):
    make(tmp_path)
    options = [*FLOAT, "environment.name=function", "environment.path=tests.support.games:Show",
               "environment.max_turns=3"]  # fmt: skip
    none, some = (
        language([*options, f"environment.kept_gb={kept}"], SINGLE_RANK, tmp_path, fake=True)["sample"].total
        for kept in (0.0, 0.0005)
    )
    assert some - none == pytest.approx(0.0005 * 2**30, rel=0.02)


@pytest.mark.parametrize("family", ["qwen3_5", pytest.param("gemma3", marks=thorough)])
def test_the_size_of_what_a_class_keeps_is_known(family, monkeypatch):
    """Recurrent states are as large for any conversation, sliding windows end; the size of one tells that of others."""
    told, put = {}, Kept.put

    def noted(self, name, ids, cached, size):
        told[len(ids)] = size
        assert {tokens: kept_by_class(cached, tokens) for tokens in told} == told
        put(self, name, ids, cached, size)

    monkeypatch.setattr(Kept, "put", noted)
    play(Shows(max_turns=3), prompts(), family=family)
    assert len(told) > 1


def test_ranks_that_sample_gather_the_policy_alone(tmp_path):
    model(tmp_path, hidden=64, layers=2)
    config = load("qwen25_vl/grpo", [f"model.path={tmp_path / 'model'}", *PPO])
    with pretend_ranks(2) as of, Pretending().active(), without_weights():
        roles = assemble(config, of).roles
        with roles.gathered():
            found = {name: network.is_gathered for name, network in roles.shards.networks.items()}
    assert found == {"policy": True, "reference": False, "critic": False}
