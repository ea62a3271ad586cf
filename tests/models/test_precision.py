"""Half precision: what rests in it, that no policy is told from itself by rounding, and what is exported of it."""

from pathlib import Path

import pytest
import torch
import yaml
from diffusers import SD3Transformer2DModel
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support.generators import Generator
from tests.support.model_runs import run_of
from tests.support.optional import seldom
from tests.support.tiny_run import burnish

LOW, STILL = "model.dtype=bfloat16", "optimizer.lr=1e-12"
CORRECTION = "algorithm.rollout_correction={}"
CLIPS = ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/pg_clipfrac_higher", "actor/masked_fraction")
STAYING = yaml.safe_load(Path(__file__).with_name("staying.yaml").read_text())
OFTEN = ["flow_grpo", "flow_grpo recomputed", "grpo", "gspo", "ppo"]
OTHER_SHAPES = 0.01  # the KL per token of equal policies in micro-batches of other shapes


@pytest.mark.parametrize("name", [*OFTEN, *seldom(*(name for name in STAYING if name not in OFTEN))])
def test_rounding_is_neither_a_step_nor_a_distance(name, files):
    model, options, *_ = STAYING[name]
    draws = model in ("sd3", "flux")
    cut = "trainer.micro_batch_tokens=60"
    if draws:
        cut = f"trainer.micro_batch_size={4 if name in ('crd', 'dgpo') else 3}"  # which compare the samples of a group
    run = run_of(files, model, f"algorithm={name.split()[0]}", LOW, STILL, cut, name="staying")
    run.train("steps=1", *options, *["critic.optimizer.lr=1e-12"] * (name == "ppo"))
    found = {key: value for line in run.metrics for key, value in line.items() if value is not None}
    assert {key: found[key] for key in CLIPS if found.get(key)} == {}
    # kernels of some CPUs round by the number of rows
    near = 0 if draws or torch.backends.cpu.get_cpu_capability() == "AVX512" else OTHER_SHAPES
    assert name == "reinforce" or abs(found.get("actor/ppo_kl", 0.0)) <= near  # which takes no ratio
    assert abs(found.get("actor/ratio_mean", 1.0) - 1) + found.get("actor/ratio_std", 0.0) <= near
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


NEAR = 0.02  # nats, on average, also where biases are far above what they are added to


@pytest.mark.parametrize("lora", ["{rank: 2}", *seldom("null")])
@pytest.mark.parametrize("model", ["qwen3_moe", *seldom("qwen2", "qwen3_vl")])
def test_sampler_and_trainer_are_as_near_as_rounding_lets_them(model, lora, files):
    for layout in ("padded", "packed", "shared"):
        run = run_of(files, model, LOW, f"model.lora={lora}", f"trainer.layout={layout}", name="near")
        run.train("steps=2", "trainer.epochs=1")
        apart = [row["rollout_corr/logprob_abs_diff"] for row in run.metrics if "rollout_corr/logprob_abs_diff" in row]
        assert max(apart) < NEAR, layout


@pytest.mark.parametrize("model", ["qwen2", *seldom("sd3")])
def test_what_is_exported_is_what_was_learned_rounded_once(model, files, caplog):
    run = run_of(files, model, LOW, "optimizer.lr=1e-3", name=f"low-{model}")
    run.train("steps=1", "checkpoint.every=1")
    out = {what: files / f"{model}-{what}" for what in ("float32", "none", "lora")}
    burnish("export", run.output, "--output", out["none"])
    assert "--dtype float32" in caplog.text
    burnish("export", run.output, "--output", out["float32"], "--dtype", "float32")
    burnish("export", run.output, "--output", out["lora"], "--format", "lora")
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


@pytest.mark.parametrize(
    ("model", "published", "rests"),
    [("qwen-image", torch.bfloat16, torch.bfloat16), ("qwen-image", torch.float32, torch.float32),
     ("sd3", torch.bfloat16, torch.float32)],  # whose VAE asks for float32
)  # fmt: skip
def test_a_vae_has_the_precision_that_it_is_published_in(model, published, rests, tmp_path):
    burnish("tiny", model, tmp_path / "model")
    for file in (tmp_path / "model" / "vae").glob("*.safetensors"):
        save_file({key: value.to(published) for key, value in load_file(file).items()}, file, {"format": "pt"})
    for dtype, expected in (("bfloat16", rests), ("float32", torch.float32)):
        ours = Generator(tmp_path / "model", steps=2, dtype=dtype, rollout={"height": 32, "width": 32})
        assert ours.model.pipeline.vae.dtype == expected
        asked = ours.asked("a red fox")
        pixels = ours.model.decode(ours.draw(asked, ours.start(asked)), asked)
        states = ours.model.encode_images(pixels, asked)
        assert states.isfinite().all()
