"""Every algorithm that trains a generator, with its main options: what runs on a pretended GPU."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.rewards.tiny import scorer_named
from burnish.rewards.tiny import write as write_scorer
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.tiny_recipes import flow_recipe, write_lines, write_recipe, write_rewards

CORRECTION = "algorithm.rollout_correction"
SEVERAL = ["trainer.mini_batch_size=4", "trainer.epochs=2", "trainer.micro_batch_size=4"]
MOVING = ["algorithm.train_timesteps=2", "algorithm.old_decay=ema", "algorithm.old_ema=0.5"]
SAMPLING = [f"algorithm.{one}" for one in ("sample_with=slower", "lagged.slower.decay=ema", "lagged.slower.ema=0.9")]
ANCHOR = ["algorithm.anchor=average", "algorithm.lagged.average.decay=linear_to_0_5"]
DIFFERENTIABLE = ["rewards.brightness=null", "rewards.border_darkness.weight=-1"]
LEARNED = [
    f"rewards.{name}={{{{path: {{folder}}/{name}, tokenizer: null, device: cuda, weight: 0.1}}}}"
    for name in ("pickscore", "imagereward")
]
TEACHERS = "algorithm.teachers=[{{path: null, guidance_scale: 2}}, {{path: {folder}/{family}-teacher/pipeline}}]"
# by name: the family, and options; the first word is the algorithm's name
CASES: dict[str, tuple[str, list[str]]] = {
    "flow_grpo": ("sd3", ["rollout.guidance_scale=2", "rollout.guidance_rescale=true"]),
    "flow_grpo told guidance": ("flux", ["rollout.embedded_guidance=2.5", "rollout.guidance_scale=2"]),
    "flow_grpo without embedded guidance": ("schnell", ["model.lora=null"]),
    "flow_grpo kl": ("sd3", ["algorithm.kl_coef=0.1", "model.lora=null", "ema.decay=0.5", "optimizer.warmup_steps=1"]),
    "flow_grpo several steps": ("sd3", [*SEVERAL, "algorithm.old_logprob=recompute", "algorithm.fold_timesteps=false"]),
    "flow_grpo unmerged": ("flux", [*SEVERAL, "rollout.merge_lora=false", "algorithm.timestep_fraction=0.5"]),
    "flow_grpo cps": (
        "sd3",
        ["algorithm.transition=cps", "algorithm.best_of=2", "rollout.batch_size=3", "rollout.trajectories=host"],
    ),
    "flow_grpo two rewards": ("sd3", ["algorithm.advantage_aggregation=gdpo", "algorithm.advantage_std=global"]),
    "flow_grpo cheap candidates": ("sd3", ["rollout.candidates={n: 6, num_inference_steps: 2}"]),
    "flow_grpo candidates": ("sd3", ["rollout.candidates.n=6", "rollout.filter_groups.max_num_gen_batches=2"]),
    "flow_grpo supervised": ("flux", ["supervised={{train_files: {folder}/pictures.jsonl, batch_size: 2}}"]),
    "flow_grpo with vae": ("vae", ["model.gradient_checkpointing=true", "trainer.micro_batch_size=4"]),
    "flow_grpo quantised": (
        "sd3", ["model.quantization={weights: fp8_cast, text_encoders: fp8_cast}", "model.gradient_checkpointing=true"],
    ),
    "flow_grpo offloaded": ("vae", ["model.offload=true", "model.quantization.text_encoders=fp8_cast"]),
    "flow_grpo any offloaded": (
        "sdxl", ["model.offload=true", "model.lora=null", "rollout.max_sequence_length=null"],
    ),
    "flow_grpo weights": ("sd3", [f"{CORRECTION}={{batch_normalise: true}}", *SEVERAL]),
    "flow_grpo bypass": ("sd3", [f"{CORRECTION}={{mode: bypass, weights: sample, lower: 0.5}}", *SEVERAL]),
    "flow_grpo rejection": ("sd3", [f"{CORRECTION}={{weights: none, reject: seq_mean_k1, reject_above: 2}}"]),
    "flow_grpo_fast": ("sd3", ["algorithm.window={kind: random, size: 1}"]),
    "mix_grpo": ("flux", ["algorithm.window={kind: progressive, size: 1}", "rollout.solver=dpm2m"]),
    "mix_grpo flash": ("sd3", ["algorithm.window={kind: progressive, size: 1}", "algorithm.steps_after=0.5"]),
    "tempflow_grpo": ("sd3", []),
    "dance_grpo": ("flux", ["algorithm.timestep_fraction=0.5"]),
    "grpo_guard": ("sd3", SEVERAL),
    "flow_dppo": ("sd3", [*SEVERAL, "algorithm.kl_measure=means"]),
    "branch_grpo": ("sd3", ["algorithm.splits=[0, 1]"]),
    "branch_grpo extreme": (
        "sd3", ["algorithm.splits=[0, 1]", "algorithm.leaf_pruning=extreme", "algorithm.keep_leaves=2"],
    ),
    "branch_grpo parent_best": (
        "flux",
        ["algorithm.splits=[0, 1]", "algorithm.leaf_pruning=parent_best", "algorithm.skip_depths=1", CORRECTION],
    ),
    "diffusion_nft": ("sd3", ["algorithm.train_timesteps=2", "algorithm.kl_coef=0.1", "rollout.solver=heun"]),
    "diffusion_nft slow": ("flux", [*MOVING, *SEVERAL, "model.lora=null", "rollout.guidance_scale=2"]),
    "awm": ("sd3", ["algorithm.train_timesteps=2", "algorithm.weighting=ghuber", *SEVERAL]),
    "awm kl": ("flux", [*MOVING, "algorithm.kl_coef=0.1", "algorithm.old_kl_coef=0.1", "model.lora=null", *ANCHOR]),
    "crd": ("sd3", ["algorithm.train_timesteps=2", "algorithm.temperature=0.5", "algorithm.matching=mse", *SAMPLING]),
    "crd reference": (
        "flux",
        ["algorithm.train_timesteps=2", "algorithm.baseline=reference", "algorithm.kl_coef=0.1",
         "algorithm.kl_adaptive=true", "algorithm.kl_guidance=2", "model.lora=null"],
    ),
    "dgpo": ("sd3", ["algorithm.train_timesteps=2", "algorithm.clip=0.001", *SEVERAL]),
    "dgpo slow": ("flux", [*MOVING, "algorithm.kl_coef=0.1", "model.lora=null", "algorithm.times=uniform"]),
    "tdm_r1": ("sd3", ["algorithm.reward_steps=2", "model.gradient_checkpointing=true"]),
    "tdm_r1 all weights": ("flux", ["model.lora=null", "algorithm.advantage_std=group", "rollout.solver=dpm2m"]),
    "diffusion_dpo": ("sd3", ["algorithm.train_timesteps=2", "algorithm.sft_coef=0.1"]),
    "diffusion_dpo pairs": (
        "flux",
        ["algorithm.train_timesteps=2", "algorithm.online=false", "data.train_files={folder}/pairs.jsonl",
         "data.val_files={folder}/prompts.txt", "model.lora=null", "algorithm.times=logit_normal"],
    ),
    "distill": ("sd3", ["algorithm.objective=distill_kl", "algorithm.transition=sde", TEACHERS]),
    "distill ode": ("flux", ["algorithm.objective=distill_fm_mse", "algorithm.transition=ode", TEACHERS]),
    "draft": ("vae", [*DIFFERENTIABLE, "algorithm.last_steps=2", "algorithm.kl_coef=0.1", "algorithm.recompute=true"]),
    "draft lv": ("sd3", [*DIFFERENTIABLE, "algorithm.kind=draft_lv", "algorithm.ceiling=0.5", "model.lora=null"]),
    "draft learned": ("vae", ["rewards.brightness=null", *LEARNED]),
    "draft refl": ("flux", [*DIFFERENTIABLE, "algorithm.kind=refl", "algorithm.kl_coef=0.1"]),
    "flow_grpo two experts": (
        "wan2.2",
        ["rollout.guidance_scale=2", "rollout.num_frames=5", "algorithm.kl_coef=0.1",
         "rewards.brightness.frames.every=2"],
    ),
    "flow_grpo predicts noise": (
        "sdxl", ["rollout.guidance_scale=2", "model.lora=null", "rollout.max_sequence_length=null"],
    ),
    "diffusion_nft any pipeline": ("qwen-image", [*MOVING, "rollout.guidance_scale=2", "algorithm.kl_coef=0.1"]),
    "sft": ("sd3", ["data.train_files={folder}/pictures.jsonl", "data.val_files={folder}/prompts.txt"]),
    "sft dropout": (
        "vae",
        ["data.train_files={folder}/pictures.jsonl", "data.val_files={folder}/prompts.txt",
         "algorithm.prompt_dropout=0.5", "rollout.guidance_scale=2", "model.lora=null"],
    ),
}  # fmt: skip

UNIVERSAL = ("wan2.2", "sdxl", "qwen-image")  # models that no family is written for

# of a micro-batch: which of its samples are compared with each other, and pictures that are imitated for the first time
WAITS = {"crd": 6, "crd reference": 6, "dgpo": 2, "dgpo slow": 3, "flow_grpo supervised": 3, "tdm_r1": 2,
         "tdm_r1 all weights": 2}  # fmt: skip


def write_files(folder: Path) -> None:
    """Models, prompts, pictures, pairs and rewards of all cases, and a recipe for each family."""
    tiny_pipeline(folder / "sd3", vae=False)
    tiny_pipeline(folder / "sd3-teacher", vae=False, seed=1)
    tiny_pipeline(folder / "vae", t5=True)
    tiny_flux(folder / "flux", vae=False)
    tiny_flux(folder / "flux-teacher", vae=False, seed=1)
    tiny_flux(folder / "schnell", vae=False, guidance=False)
    write_rewards(folder)
    for name in ("pickscore", "imagereward"):
        write_scorer(scorer_named(name), folder / name, 0)
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    for colour in ("white", "black"):
        Image.new("RGB", (16, 16), colour).save(folder / f"{colour}-vae.png")
        Image.new("RGB", (8, 8), colour).save(folder / f"{colour}.png")
    for end in ("", "-vae"):
        pictures = [{"prompt": "a cat", "image": f"white{end}.png"}, {"prompt": "a dog", "image": f"black{end}.png"}]
        pairs = [{"prompt": "a cat", "chosen": f"white{end}.png", "rejected": f"black{end}.png"}] * 2
        write_lines(folder / f"pictures{end}.jsonl", pictures)
        write_lines(folder / f"pairs{end}.jsonl", pairs)
    for name in UNIVERSAL:
        write(describe(name), folder / name / "pipeline", 0)
    for family in ("sd3", "flux", "schnell", "vae", *UNIVERSAL):
        side = 32 if family in UNIVERSAL else 16 if family == "vae" else 8
        write_recipe(
            folder / f"{family}.yaml", flow_recipe(folder, family, side=side) | {"trainer": {"micro_batch_size": 96}}
        )


def options(folder: Path, name: str) -> tuple[Path, list[str]]:
    family, given = CASES[name]
    filled = []
    for option in given:
        if option == CORRECTION:
            option = f"{CORRECTION}={{reject: token_k2, reject_above: 3}}"
        if "{folder}" in option:
            option = option.format(folder=folder, family=family)
        filled.append(option.replace("pictures.jsonl", "pictures-vae.jsonl") if family == "vae" else option)
    if "two rewards" in name:
        filled.append(f"rewards.left={{name: function, path: '{folder / 'rewards.py'}:left', weight: 0.5}}")
    return folder / f"{family}.yaml", [f"algorithm={name.split()[0]}", *filled]
