"""Half precision: what rests in it, that no policy is told from itself by rounding, and what is exported of it."""

from __future__ import annotations

import pytest
import torch
from diffusers import SD3Transformer2DModel
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from burnish.algorithms.kl import TokenKl
from burnish.registry import lookup
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.flow_bench import WINDOW
from tests.support.flow_bench import Bench as FlowBench
from tests.support.forwards import LAYOUTS, apart, from_sampler, learned, load, repeated, sampled, theirs
from tests.support.generators import Generator
from tests.support.language_samples import encode_all, folder_of
from tests.support.model_runs import run_of
from tests.support.placing import at_rest
from tests.support.tiny_run import burnish
from tests.support.token_batches import Bench as LanguageBench
from tests.support.universal import load_universal, universal_folder

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU")
LOW, STILL = "model.dtype=bfloat16", "optimizer.lr=1e-12"
KL = "algorithm.kl_coef=0.1"
CORRECTION = "algorithm.rollout_correction={}"
TIMES = "algorithm.train_timesteps=2"
ADAPTIVE = "algorithm.kl={route: reward, kind: k2, controller: adaptive, target: 0.05, horizon: 1000}"
CLIPS = ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/pg_clipfrac_higher", "actor/masked_fraction")
# of a policy that never changes, every step of which has to find it unchanged
STAYING = {
    "flow_grpo": ("sd3", [KL]),
    "flow_grpo cps": ("sd3", [KL, "algorithm.transition=cps", "model.lora=null"]),
    "flow_grpo exact": ("sd3", [KL, "algorithm.kl_form=exact", "algorithm.transition=sde", CORRECTION]),
    "flow_grpo recomputed": ("flux", ["algorithm.old_logprob=recompute", "algorithm.clip=1e-6"]),
    "branch_grpo": ("sd3", ["algorithm.splits=[0, 2]"]),
    "diffusion_nft": ("sd3", [TIMES, KL]),
    "crd": ("sd3", [TIMES, KL, "model.lora=null"]),
    "dgpo": ("sd3", [TIMES, KL]),
    "grpo": ("qwen2_5_vl", ["algorithm.kl={coef: 0.1, kind: k3}"]),
    "grpo of k1": ("llama", ["algorithm.kl={coef: 0.1, kind: k1}", "model.lora=null"]),
    "grpo recomputed": ("qwen2", ["algorithm.old_logprob=recompute", ADAPTIVE]),
    "gspo": ("qwen2", [CORRECTION, "algorithm.clip=1e-6", "model.lora=null"]),
    "reinforce": ("llama", ["algorithm.kl={route: reward, kind: k1, coef: 0.1}", "model.lora=null"]),
    "ppo": ("qwen2_5_vl", ["critic.warmup_updates=0", "algorithm.kl={route: reward, coef: 0.1}"]),
}
OTHER_SHAPES = 0.01  # the KL per token of equal policies in micro-batches of other shapes


@pytest.mark.parametrize("name", STAYING)
def test_rounding_is_neither_a_step_nor_a_distance(name, files):
    model, options = STAYING[name]
    draws = model in ("sd3", "flux")
    cut = "trainer.micro_batch_tokens=60"
    if draws:
        cut = f"trainer.micro_batch_size={4 if name in ('crd', 'dgpo') else 3}"  # which compare the samples of a group
    run = run_of(files, model, f"algorithm={name.split()[0]}", LOW, STILL, cut, name="staying")
    run.train("steps=1", *options, *["critic.optimizer.lr=1e-12"] * (name == "ppo"))
    found = {key: value for line in run.metrics for key, value in line.items() if value is not None}
    assert {key: found[key] for key in CLIPS if found.get(key)} == {}
    assert name == "reinforce" or found.get("actor/ppo_kl", 0.0) == 0  # which takes no ratio
    assert (found.get("actor/ratio_mean", 1.0), found.get("actor/ratio_std", 0.0)) == (1, 0)
    assert found.get("rollout_corr/logprob_abs_diff", 0.0) < (1e-4 if draws else 0.1)
    distances = {key: value for key, value in found.items() if "kl" in key and not key.startswith("rollout_corr")}
    if draws:
        assert {key for key, value in distances.items() if key != "actor/kl_coef" and value} == set()
    elif "route: reward" in str(options):
        assert distances["actor/kl_per_response"] == 0
        assert found["critic/rewards/mean"] == found["critic/score/mean"]
    elif "algorithm.kl" in str(options):
        assert abs(distances["actor/kl_loss"]) < OTHER_SHAPES
        assert abs(distances["actor/kl_per_response"]) < 6 * OTHER_SHAPES  # of 6 tokens at most
    if CORRECTION in options:
        assert found["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=0.05)
        assert found["rollout_corr/rollout_is_eff_sample_size"] > 0.95
    if "old_policy/logprob_check" in found:
        assert (found["old_policy/logprob_check"] > 0) != draws, "only a language model's sampler rounds otherwise"


def test_rounding_of_another_engine_is_no_distance():
    bench = LanguageBench(
        lookup("language algorithm", "grpo")(kl=TokenKl(route="reward", kind="k1", coef=0.1)), lora=True
    )
    collected = bench.collect()
    collected.trace.logprob += torch.where(collected.trace.mask, 1e-3, 0.0)
    for elsewhere, kl in ((False, 1e-3), (True, 0.0)):
        bench.roles.sampler_rounds = elsewhere
        _, metrics = bench.learned(collected)
        assert metrics["actor/reward_kl_penalty"] == pytest.approx(kl, abs=1e-5 * (not elsewhere))


# Sampler and trainer are as near to each other as two forward passes of transformers or diffusers: between its cached
# and its uncached one, mean differences of log-probs were measured to be 1.00 of those for padded and packed rows
OF_THEIRS = 1.25


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("family", ["qwen2 with biases", "qwen3_moe", "qwen3_vl"])
def test_sampler_and_trainer_are_as_near_as_transformers_is_to_itself(family, lora, device):
    family, _, bias = family.partition(" with ")
    model = load(folder_of(family), device, lora=lora, bias=bool(bias))
    encoded = encode_all(model, family)
    completion = sampled(model, encoded.select([0]))
    uncached, cached = theirs(folder_of(family), model, completion, device, lora=lora, bias=bool(bias))
    floor, _ = apart(cached, uncached, completion.mask)
    for layout, mine in zip(LAYOUTS, from_sampler(model, completion), strict=True):
        # some CPUs' kernels round alike whatever the shape: then neither pair differs
        assert mine <= OF_THEIRS * floor + 1e-5, (layout, mine, floor)
    if len(encoded) > 1:  # pictures, where the vision tower's rounding comes first
        assert max(from_sampler(model, sampled(model, encoded))) < 0.01


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("write", [tiny_pipeline, tiny_flux])
def test_a_generators_trainer_repeats_its_samplers_log_probs(write, lora, tmp_path):
    how = {"lora": lora, "dtype": "bfloat16", "device": "cpu", "length": 16, "height": 8, "width": 8}
    bench = FlowBench(write(tmp_path, vae=False), lookup("flow algorithm", "flow_grpo")(window=WINDOW), **how)
    learned(bench.roles.parameters().values())
    steps = bench.collect().trace.steps()
    found = []
    for size in (100, 7, 1):
        bench.roles.micro_batch_size = size
        found.append(repeated(bench, steps))
    assert torch.equal(found[0], steps.logprob)
    for other in found[1:]:  # a clip range is 1e-4
        torch.testing.assert_close(other, found[0], rtol=0, atol=5e-5)
    if not lora:  # a worker that only samples holds weights in bfloat16, where that moves no bit
        assert torch.equal(at_rest(bench, lambda: bench.collect().trace.steps().logprob), steps.logprob)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_moe"])
def test_a_language_model_at_rest_samples_the_same(family):
    bench = LanguageBench(lookup("language algorithm", "grpo")(), lora=False, family=family, dtype="bfloat16")
    learned(bench.roles.model.network.parameters())
    encoded = encode_all(bench.roles.model, family)
    before = sampled(bench.roles.model, encoded)
    after = at_rest(bench, lambda: sampled(bench.roles.model, encoded))
    assert torch.equal(before.ids, after.ids)
    assert torch.equal(before.logprob, after.logprob)
    assert {one.dtype for one in bench.roles.sampler_weights(full=True).values()} == {torch.float32, torch.bfloat16}


def kinds(part):
    return {weight.dtype for weight in part.parameters()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, {}], ids=["full", "lora"])
def test_only_what_is_trained_rests_in_float32(dtype, lora):
    generator, compute = Generator("sd3", lora=lora, dtype=dtype), getattr(torch, dtype)
    base = [value for name, value in generator.network.named_parameters() if ".lora_" not in name]
    assert {value.dtype for value in base} == ({torch.float32} if lora is None else {compute})
    pipeline = generator.model.pipeline
    assert kinds(pipeline.text_encoder) == kinds(pipeline.text_encoder_2) == {compute}
    assert kinds(pipeline.vae) == {torch.float32}
    if dtype == "bfloat16" and lora is None:  # and a forward pass keeps no second network beside it
        language = load_universal(universal_folder("gemma3"), dtype=dtype)
        for context in (
            generator.model.autocast(), language._autocast(language.device),
            language.forwards.precision({"ids": torch.zeros(1)}),
        ):  # fmt: skip
            with context:
                assert not torch.is_autocast_cache_enabled()


def test_a_frozen_network_reads_the_state_in_its_own_precision():
    from burnish.models.flow.stand_ins import of_its_precision

    part = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    part.dtype = torch.bfloat16
    assert of_its_precision(part)(torch.ones(1, 2)).dtype == torch.bfloat16


@pytest.mark.parametrize("model", ["sd3", "qwen2"])
def test_what_is_exported_is_what_was_learned_rounded_once(model, files):
    run = run_of(files, model, LOW, "optimizer.lr=1e-3", name=f"low-{model}")
    run.train("steps=1", "checkpoint.every=1")
    out = {what: files / f"{model}-{what}" for what in ("float32", "none", "lora")}
    told = burnish("export", run.output, "--output", out["none"]).out
    burnish("export", run.output, "--output", out["float32"], "--dtype", "float32")
    burnish("export", run.output, "--output", out["lora"], "--format", "lora")
    assert "--dtype float32" in told
    refusal = burnish("export", run.output, "--output", files / "x", "--format", "lora", "--dtype", "float32", status=2)
    assert "--dtype" in refusal.message
    if model == "sd3":
        plain = SD3Transformer2DModel.from_pretrained(files / model / "transformer", torch_dtype=torch.bfloat16)
        whole, rounded = (
            SD3Transformer2DModel.from_pretrained(out[one] / "transformer", torch_dtype="auto").state_dict()
            for one in ("float32", "none")
        )
    else:
        plain = AutoModelForCausalLM.from_pretrained(files / model, dtype=torch.bfloat16)
        whole, rounded = (
            AutoModelForCausalLM.from_pretrained(out[one], dtype="auto").state_dict() for one in ("float32", "none")
        )
        PeftModel.from_pretrained(plain, out["lora"]).unload()
    (file,) = out["lora"].glob("*.safetensors")
    adapter = load_file(file)
    deltas = {
        name.removesuffix(".lora_A.weight"): 2 * adapter[name.replace("lora_A", "lora_B")].float() @ value.float()
        for name, value in adapter.items() if name.endswith(".lora_A.weight")
    }  # fmt: skip
    assert deltas
    for name, delta in deltas.items():
        key = name.removeprefix("transformer.").removeprefix("base_model.model.") + ".weight"
        expected = plain.state_dict()[key].float() + delta
        torch.testing.assert_close(whole[key], expected, rtol=0, atol=1e-7)
        assert torch.equal(rounded[key], whole[key].bfloat16())


def test_who_only_samples_needs_the_networks_that_sample():
    needs = lookup("flow algorithm", "flow_grpo")(kl_coef=0.1).needs()
    assert (needs.reference, needs.to_sample().reference) == (True, False)
    sampled_with = lookup("flow algorithm", "diffusion_nft")(sample_with="old").needs()
    assert sampled_with.to_sample().lagged == ("old",) == (sampled_with.sampler,)
    needs = lookup("language algorithm", "ppo")().needs()
    assert (bool(needs.critic), bool(needs.to_sample().critic)) == (True, False)
