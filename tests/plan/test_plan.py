"""What a plan counts, what it chooses and advises, and what it refuses."""

import json
import re
import warnings
from contextlib import closing

import pytest
import torch

from burnish.config import load
from burnish.config.batches import with_sizes
from burnish.environments.drawing import Draw
from burnish.plan.counter import LiveBytes
from burnish.plan.forecast import Forecasts, forecast
from burnish.plan.language import Repeated
from burnish.plan.made_up import longest_prompt
from burnish.tasks import assemble
from burnish.training.flop_counter import FlopCounter
from tests.plan.plans import larger, plan
from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun, burnish

thorough = pytest.mark.thorough
RAY = ["runtime=ray", "pools.rollout.processes=1"]
LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 16,
         "num_key_value_heads": 4, "vocab_size": 32000}  # fmt: skip


@pytest.fixture(scope="module")
def large(files):
    """Plan a run of a language model of 90 M weights, of which no file is there."""
    run = larger(files, "large", "qwen2", **LARGE)

    def planned(*options, status=0):
        given = {option.partition("=")[0]: option for option in (*run.options, *options)}
        return plan(run.recipe, *given.values(), status=status)

    return planned


OFFLINE = ["algorithm=diffusion_dpo", "algorithm.online=false", "runtime=ray", "pools.train.processes=2"]
IMITATES = ["algorithm=flow_grpo", "supervised.train_files=nowhere"]


@pytest.mark.parametrize("given", [["algorithm=sft"], *seldom(OFFLINE, IMITATES)])
def test_a_plan_needs_no_data_and_no_adapter(given):
    absent = [f"{option}=nowhere.jsonl" for option in ("data.train_files", "data.val_files", "model.lora.path")]
    found = plan("quickstart", *given, *absent, "trainer.micro_batch_size=96", "memory=80GB")
    assert found.pools["train"]["update, backward"]["activations"] > 0.02
    assert "It fits into 74.5 GiB" in found.said


@pytest.mark.thorough
def test_what_is_shared_out_kept_and_sampled_is_counted(large):
    given = ["model.lora=null", "rollout.max_new_tokens=64"]
    alone, halves = (large(*given, *two).pools["train"] for two in ([], ["runtime=ray", "pools.train.processes=2"]))
    assert alone["sync weights"]["weights"] == pytest.approx(0.35, abs=0.03)
    for what in ("weights", "optimizer"):
        assert halves["sync weights"][what] == pytest.approx(alone["sync weights"][what] / 2, abs=0.02)
    longer = large("model.lora=null", "rollout.max_new_tokens=2048", "rollout.batch_size=8").pools["train"]
    keys = 8 * 2048 * 2 * 4 * 4 * 64 * 4 / 2**30  # rows, tokens, keys and values, layers, heads, width, bytes
    assert keys <= longer["sample"]["caches"] < 2 * keys


@pytest.mark.thorough
def test_ranks_that_split_sequences_have_fewer_activations(large):
    given = ["model.lora=null", "rollout.max_new_tokens=1024", "trainer.micro_batch_tokens=2400", "runtime=ray",
             "pools.train.processes=2"]  # fmt: skip
    alone, split = (large(*given, f"sharding.context_parallel={size}").pools["train"] for size in (1, 2))
    held = [found["update, forward"]["activations"] for found in (alone, split)]
    assert held[1] == pytest.approx(held[0] / 2, rel=0.1)


@pytest.mark.parametrize(("family", "sizes"), [  # of the second there is no tiny model
    ("opt", {"hidden_size": 1024, "word_embed_proj_dim": 1024, "ffn_dim": 1024, "num_attention_heads": 16}),
    ("bert", {"model_type": "ernie", "hidden_size": 1024, "intermediate_size": 1024, "num_attention_heads": 16}),
])  # fmt: skip
def test_a_cache_of_a_class_s_own_has_every_token_although_few_are_decoded(family, sizes, files):
    run = larger(files, f"own cache of {family}", family, **sizes, num_hidden_layers=2)
    short = ["data.max_prompt_length=8", "rollout.max_new_tokens=8", "rollout.n=1024", "rollout.batch_size=2048"]
    found = plan(run.recipe, *run.options, *short).pools["train"]["sample"]
    keys = 2048 * (8 + 8) * 2 * 2 * 1024 * 4 / 2**30  # rows, tokens, keys and values, layers, width, bytes
    assert keys < found["peak"] - found["weights"] < 1.9 * keys, "with copies of a layer, which gets longer"


@thorough
def test_turns_and_suites_are_counted(large, tmp_path, monkeypatch):
    game = ["environment.name=function", "environment.path=tests.support.games:Show", "environment.max_turns=3"]
    game += ["rollout.max_new_tokens=1000", "data.max_prompt_length=1024"]
    peaks = []
    for kept in (0, 1 << 26, 1 << 30):  # the second is less than all conversations have, the third more
        monkeypatch.setattr("burnish.plan.language.KEPT", kept)
        peaks.append(large(*game).pools["train"]["sample"]["peak"])
    conversations = 8 * 3024 * 2 * 4 * 4 * 64 * 4 / 2**30  # rows, columns, keys and values, layers, heads, width, bytes
    assert [peak - peaks[0] for peak in peaks[1:]] == pytest.approx([0.0625, conversations], abs=0.02)
    (tmp_path / "longer.yaml").write_text(
        "task: image-text-to-text\nprompts: burnish:vlm_quickstart/heldout.jsonl\nscorers: {exact: {}}\n"
        "responding: {max_new_tokens: 2048}\ndata: {max_prompt_length: 160}\n"
    )
    suite = ["validation.before=true", f"validation.suites=[{tmp_path / 'longer.yaml'}]", "validation.suite_prompts=8"]
    found = large("rollout.batch_size=8", *suite).pools["train"]
    assert found["validate"]["peak"] > found["sample"]["peak"] + 0.1


@pytest.mark.thorough
def test_a_worker_that_samples_rests_in_low_precision_and_gets_what_is_trained(large):
    given = ["model.lora=null", "model.dtype=bfloat16", "runtime=ray", "pools.rollout={processes: 4, gpus: 0.5}"]
    found = large(*given, "memory=80GB")
    weights = found.pools["train"]["sync weights"]["weights"]
    assert found.pools["rollout"]["load"]["peak"] < 0.75 * weights, "but for the head"
    assert "2 processes of pool rollout on one GPU" in found.said


GENEVAL = "rewards.geneval={name: geneval_mask2former, device: cuda}"


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "where"), [
    (["rewards.other={name: pickscore, device: cuda, path: who/knows}"], {"train"}),
    ([*RAY, "validation.every=null", "validation.before=false", "scoring.probe=false"], {"rollout"}),
    ([*RAY, "pools.reward.processes=1"], {"reward"}),
])  # fmt: skip
def test_networks_of_rewards_count_where_they_score(options, where):
    found = plan("quickstart", GENEVAL, *options)
    held = {name: max(row.get("rewards", 0.0) for row in rows.values()) for name, rows in found.pools.items()}
    assert {name for name, size in held.items() if size} == where
    assert max(held.values()) == pytest.approx((68.7e6 + 427.6e6) * 4 / 2**30, abs=0.6)  # two networks, and CUDA's own
    assert ("rewards.other" in found.said) == ("rewards.other" in str(options))


@pytest.mark.thorough
def test_the_largest_batch_that_fits_is_chosen(large):
    given = ["rollout.n=16", "rollout.max_new_tokens=128", "rollout.batch_size=8"]
    found = large(*given, "trainer.micro_batch_tokens=auto", "memory=2.6GB")
    (size,) = map(int, re.findall(r"trainer.micro_batch_tokens=(\d+)", found.said))
    assert size > 500
    large(*given, f"trainer.micro_batch_tokens={2 * size}", "memory=2.6GB", status=1)


def test_what_is_advised_makes_a_run_fit(large):
    given = ["model.lora=null", "rollout.max_new_tokens=16", "rollout.n=64", "trainer.micro_batch_tokens=4096"]
    tight = [*given, "memory=3.6GB"]
    options = large(*tight, status=1).options()
    assert "It fits" in large(*tight, *options).said


VLLM = ["rollout.engine=vllm", "rollout.max_new_tokens=2048", "rollout.batch_size=128",
        "data.max_prompt_length=1024"]  # fmt: skip


@pytest.mark.thorough
def test_a_gpu_that_is_shared_with_vllm_holds_both(large):
    given = {"python": "python", "memory_fraction": 0.5, "max_model_len": 3072}
    found = large(*VLLM, f"rollout.vllm={json.dumps(given)}", "memory=24GiB").said
    assert "256 of 256" in found
    assert "beside 12.0 GiB of vLLM" in found
    given["memory_fraction"] = 0.05
    found = large(*VLLM, f"rollout.vllm={json.dumps(given)}", "memory=24GiB", status=1).said
    assert "rollout.vllm.memory_fraction" in found


@pytest.mark.parametrize(("options", "words"), [
    (["runtime=ray", "pools.train.processes=2", "sharding.context_parallel=2"], "sharding.context_parallel=1"),
    (["validation.suites=[vlm_quickstart]"], "another suite"), (["validation.suites=[nowhere]"], "chartqa"),
    (["sharding.offload=true", "model.device=cuda", "model.lora=null"], "sharding.offload is true"),
    *(([f"memory={size}"], "memory=80GB") for size in ("80", "GB", "-1GB", "1e9GB", "8.GB")),
])  # fmt: skip
def test_what_a_run_would_refuse_or_a_forecast_can_not_tell_is_said(options, words):
    assert words in burnish("plan", "quickstart", *options, status=2).message


def networks():
    from burnish.plan.published import published

    return [
        pytest.param(model, part, n, id=f"{name} {part}", marks=() if 1e8 < n < (2e9 if part else 4e9) else thorough)
        for name, model in published().items()
        for part, n in model.weights.items()
    ]


@pytest.mark.parametrize(("model", "part", "size"), networks())
def test_a_published_configuration_has_the_weights_of_its_model(model, part, size, tmp_path):
    import diffusers
    import transformers

    model.write(tmp_path)
    folder = tmp_path / part
    kind = diffusers.DiffusionPipeline.load_config(tmp_path)[part][1] if part else ""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if hasattr(diffusers, kind):
            made = getattr(diffusers, kind).from_config(getattr(diffusers, kind).load_config(folder))
        else:
            config = None if kind else transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            made = getattr(transformers, kind or config.architectures[0])
            made = made(config or made.config_class.from_pretrained(folder, local_files_only=True))
    assert sum(one.numel() for one in made.parameters()) == pytest.approx(size, rel=5e-3)


DRAWS = ["algorithm=flow_grpo", "rollout.batch_size=3", "trainer.micro_batch_size=4"]
WRITES = ["algorithm=grpo", "rollout.batch_size=3", "trainer.micro_batch_tokens=300", "data.max_prompt_length=40",
          "rollout.max_new_tokens=24", "rollout.min_new_tokens=24"]  # fmt: skip


@pytest.mark.parametrize(("half", "model", "options", "near"), [
    ("language", "qwen2", WRITES, 0.2),  # attention to what is written meanwhile counts as bytes alone
    *seldom(("generators", "sd3", DRAWS, 0.1)),
])  # fmt: skip
def test_seconds_are_of_what_an_update_computes(half, model, options, near, files):
    """The operations of a forecast are those of the run, batch by batch and step by step."""
    run = TinyRun(files, half, model, *options, "validation.every=null")
    work = forecast(load(str(run.recipe), run.options)).pools[0].work
    assembly = assemble(load(str(run.recipe), run.options))
    assembly.scorer.start()
    if half == "language":  # which is planned for prompts of the greatest length
        longest = longest_prompt(assembly.roles.model, assembly.config.data)
        assembly.engine.encode = Repeated(assembly.engine.encode, longest)
    with closing(assembly), closing(assembly.scorer):
        assembly.source.rollout(1)  # compares with the pipeline's own run
        with LiveBytes(), FlopCounter() as sampled:  # without inference mode, which hides operations
            scored = assembly.source.rollout(2)
        batch, _ = assembly.workers.compute_advantages(assembly.workers.compute_logprobs(scored))
        with FlopCounter() as learned:
            assembly.workers.update(batch, 2)
    assert 0 < work["sample"]["operations"] == pytest.approx(sampled.cost.forward, rel=near)
    update = work["update, forward"]["operations"] + work["update, backward"]["operations"]
    assert update == pytest.approx(learned.cost.forward, rel=0.02)
    said = plan(run.recipe, *run.options, "tflops=0.001", "launch=0.001").said
    seconds = float(re.search(r"^sample +([\d.]+) +operations", said, re.MULTILINE)[1])
    assert seconds == pytest.approx(work["sample"]["operations"] / 1e9, rel=0.2, abs=0.1)
    assert "tflops is 0" in burnish("plan", run.recipe, "tflops=0", status=2).message


ENHANCES = [
    "environment={name: function, path: 'burnish.environments.drawing:PromptEnhancer', max_turns: 1,"
    " arguments: {path: '{files}/sd3', height: 64, width: 64, reward: {name: pickscore, device: cuda}}}",
    "rewards={environment: {weight: 1}}", "validation.every=null",
]  # fmt: skip


def test_what_draws_by_the_policy_s_prompts_is_counted(files):
    found = []
    for options in (WRITES, [*WRITES, *ENHANCES]):
        run = TinyRun(files, "language", "qwen2", *options)
        (pool,) = forecast(config := load(str(run.recipe), run.options)).pools
        found.append((pool.phases["sample"], pool.work["sample"]["operations"]))
    (before, alone), (beside, drawn) = found
    with LiveBytes() as counter, FlopCounter() as operations:
        draw = Draw(str(files / "sd3"), height=64, width=64)
        held, begun = counter.live, operations.cost.forward
        with counter.span() as span:
            draw("a fox", seed=0)
    assert beside.parts["weights"] - before.parts["weights"] == pytest.approx(held, rel=0.1)
    assert beside.parts["activations"] == pytest.approx(span.total, rel=0.1)
    assert beside.parts["rewards"] == pytest.approx(986e6 * 4, rel=0.1)
    assert drawn == pytest.approx(alone + config.samples * (operations.cost.forward - begun), rel=0.02)


def test_ranks_receive_the_gradients_of_adapters_once_a_step(files):
    ranks = ["runtime=ray", "pools.train.processes=2", "sharding.shard_size=1", "model.lora.rank=2"]
    run = TinyRun(files, "generators", "sd3", *DRAWS, *ranks, "trainer.micro_batch_size=1", "validation.every=null")
    config = load(str(run.recipe), run.options)
    with closing(Forecasts(config)) as forecasts:
        (pool,), again = forecasts({}).pools, forecasts(sizes := {"trainer.micro_batch_size": 2})
    for name, peak in forecast(with_sizes(config, sizes)).pools[0].phases.items():
        assert vars(again.pools[0].phases[name]) | {"work": peak.work} == vars(peak), f"{name}, measured with others"
    received = sum(work["of its machine"] for work in pool.work.values())
    assert received == config.steps_per_update * 4 * (pool.weights[0] - 2 * 2 * 32), "none of the last text's queries"
