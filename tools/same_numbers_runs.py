"""The runs that ``same_numbers.py`` records: every algorithm, and every part of the mathematics, for three updates.

Most are small: a few prompts, and several optimizer steps an update, so that ratios leave 1. Runs that samplers and
trainers share among processes are here with one worker that samples, because how two share a batch is rounding.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

UPDATES = 3
KEPT = 2  # the checkpoint that ``resume`` goes on from
FILES = "FILES"  # in an option: the folder of files that are written for the runs

COMMON = [
    f"steps={UPDATES}", f"checkpoint.every={KEPT}", "validation.every=0", "validation.n=1", "scoring.processes=0",
    "trainer.epochs=2",
]  # fmt: skip
DRAW = [
    *COMMON, "validation.max_prompts=2", "validation.reference_guidance=null", "data.train_batch_size=2", "rollout.n=4",
    "rollout.num_inference_steps=6", "rollout.batch_size=6", "trainer.mini_batch_size=4", "trainer.micro_batch_size=8",
    "optimizer.lr=3e-3",
]  # fmt: skip
BRIGHT = ["rewards.bright={name: function, path: 'FILES/rewards.py:bright', weight: 1}"]
WATCHED = ["rewards.bright={name: function, path: 'FILES/rewards.py:bright', weight: 0}"]
SEE = [
    *COMMON, "validation.max_prompts=4", "data.train_batch_size=2", "rollout.n=4", "rollout.max_new_tokens=8",
    "trainer.mini_batch_size=4", "trainer.micro_batch_tokens=150", "optimizer.lr=1e-3", "optimizer.warmup_steps=2",
    "rewards.odd={name: function, path: 'FILES/rewards.py:odd', weight: 1}",
]  # fmt: skip
# as they come, but for their length and the size of their validations; learning rates fall as in the whole run
WHOLE = [f"steps={UPDATES}", f"checkpoint.every={KEPT}", "validation.max_prompts=8"]

CORRECTION = "algorithm.rollout_correction"
# few bits, and adapters that are folded into them: the policy that samples is not quite the one that learns
APART = ["model.dtype=bfloat16", "rollout.merge_lora=true"]
PICTURES = ["rollout.n", "data.train_files=burnish:quickstart/pictures.jsonl", "data.train_batch_size=8"]
PAIRS = ["algorithm.online=false", "rollout.n", "data.train_files=FILES/pairs.jsonl", "data.train_batch_size=8"]
DIFFERENTIABLE = [*WATCHED, "rewards.ocr_ctc=null", "rewards.border_darkness.weight=-1"]
TWO = ["rewards.dark={name: function, path: 'FILES/rewards.py:left', weight: -0.5}"]
SUPERVISED = "supervised={train_files: burnish:quickstart/pictures.jsonl, batch_size: 2}"
DRAWING: dict[str, list[str]] = {
    # every algorithm as its variant of the recipe has it
    "flow_grpo": [],
    "flow_grpo_fast": [],
    "mix_grpo": [],
    "dance_grpo": [],
    "grpo_guard": [],
    "flow_dppo": [],
    "tempflow_grpo": [],
    "branch_grpo": ["algorithm.splits=[0, 2]"],
    "diffusion_nft": ["algorithm.train_timesteps=3"],
    "awm": ["algorithm.train_timesteps=3"],
    "crd": ["algorithm.train_timesteps=3"],
    "dgpo": ["algorithm.train_timesteps=3"],
    "diffusion_dpo": ["algorithm.train_timesteps=3"],
    "distill": [],
    "tdm_r1": [],
    "draft": WATCHED,
    "sft": [*PICTURES, "algorithm.prompt_dropout=0.5", "rollout.guidance_scale=2"],
    # parts that policy gradients share
    "flow_grpo sde": ["algorithm.transition=sde", "rollout.guidance_scale=2", "rollout.guidance_rescale=true"],
    "flow_grpo dance": ["algorithm.transition=dance", "algorithm.shared_noise=true", "algorithm.timestep_fraction=0.5"],
    "flow_grpo kl": ["algorithm.kl_coef=0.1", "model.lora=null", "optimizer.warmup_steps=2"],
    "flow_grpo kl exact": ["algorithm.kl_coef=0.1", "algorithm.kl_form=exact", "algorithm.transition=sde"],
    "flow_grpo kl means": ["algorithm.kl_coef=0.1", "algorithm.kl_form=means", "algorithm.clip=0.01"],
    "flow_grpo one step": ["trainer.mini_batch_size=null", "trainer.epochs=1"],
    "flow_grpo recomputed": ["algorithm.old_logprob=recompute", "algorithm.fold_timesteps=false"],
    "flow_grpo sampler": ["algorithm.old_logprob=sampler", "rollout.merge_lora=false"],
    "flow_grpo best of": ["algorithm.best_of=2", "algorithm.advantage_std=none"],
    "flow_grpo each": [*TWO, "algorithm.advantage_aggregation=each", "algorithm.advantage_unbiased=true"],
    "flow_grpo gdpo": [*TWO, "algorithm.advantage_aggregation=gdpo"],
    "flow_grpo global": [*TWO, "algorithm.advantage_std=global", "algorithm.advantage_clip_low=-1"],
    "flow_grpo decoupled": [f"{CORRECTION}={{batch_normalise: true}}"],
    "flow_grpo decoupled sample": [f"{CORRECTION}={{weights: sample, measure: mean, upper: 1.5, lower: 0.9}}"],
    "flow_grpo bypass": [f"{CORRECTION}={{mode: bypass, weights: sample, lower: 0.5}}"],
    "flow_grpo rejection": [f"{CORRECTION}={{weights: none, reject: seq_mean_k1, reject_above: 2}}"],
    "flow_grpo rejections": [f"{CORRECTION}={{reject: [token_k2, seq_max_k3], reject_above: [0.001, 2]}}"],
    "flow_grpo apart": [*APART, f"{CORRECTION}={{reject: [token_k1, seq_sum_k2], reject_above: [1.5, 200.04]}}"],
    "flow_grpo apart bypass": [*APART, f"{CORRECTION}={{mode: bypass, upper: 1.0005, batch_normalise: true}}"],
    "flow_grpo candidates": ["rollout.candidates={n: 6, num_inference_steps: 2}"],
    "flow_grpo filtered": ["rollout.candidates.n=6", "rollout.filter_groups.max_num_gen_batches=2"],
    "flow_grpo supervised": [SUPERVISED],
    "flow_grpo fixed": [
        "algorithm.window={kind: fixed, size: 2, scattered: false}", "rollout.schedule=shift_once", "rollout.shift=2",
    ],
    "flow_grpo last": ["algorithm.window={kind: last, size: 2, scattered: false}", "algorithm.shared_noise=true"],
    "flow_grpo for all": ["algorithm.window={kind: random, size: 2, shared_by: update}"],
    # what single algorithms add
    "mix_grpo dpm2": ["rollout.solver=dpm2m", "validation.solver=euler"],
    "mix_grpo linear": ["algorithm.window={kind: progressive, size: 1, every: 2, interval: linear, wrap: true}"],
    "mix_grpo faster": ["algorithm.window={kind: progressive, size: 2, every: 1, interval: exponential, stride: 3}"],
    "mix_grpo flash": ["algorithm.steps_after=0.5"],
    "grpo_guard kl": ["algorithm.kl_coef=0.1", "algorithm.balance=false"],
    "flow_dppo means": ["algorithm.kl_measure=means", "algorithm.kl_coef=0.1"],
    "flow_dppo decoupled": [CORRECTION + "={reject: token_k2, reject_above: 3}"],
    "tempflow_grpo plain": ["algorithm.noise_weighting=none"],
    "branch_grpo extreme": [
        "algorithm.splits=[0, 2]", "algorithm.leaf_pruning=extreme", "algorithm.keep_leaves=2",
        CORRECTION + "={reject: token_k2, reject_above: 3}",
    ],
    "branch_grpo parents": [
        "algorithm.splits=[0, 2]", "algorithm.leaf_pruning=parent_best", "algorithm.skip_depths=1",
    ],
    "diffusion_nft slow": [
        "algorithm.train_timesteps=2", "algorithm.old_decay=ema", "algorithm.old_ema=0.5", "algorithm.kl_coef=0.1",
        "model.lora=null", "rollout.guidance_scale=2", "algorithm.times=uniform",
    ],
    "diffusion_nft rising": [
        "algorithm.train_timesteps=2", "algorithm.old_decay=linear_to_0_5", "algorithm.old_decay_counts=updates",
        "algorithm.train_guidance=rollout", "rollout.guidance_scale=2",
    ],
    "diffusion_nft ramp": [
        "algorithm.old_decay=linear", "algorithm.old_linear=[1, 0.2, 0.1, 0.9]", "algorithm.timestep_fraction=0.5",
    ],
    "diffusion_nft heun": ["algorithm.train_timesteps=2", "rollout.solver=heun", "algorithm.sample_with=policy"],
    "awm anchor": [
        "algorithm.train_timesteps=2", "algorithm.old_kl_coef=0.1", "algorithm.sample_with=policy",
        "algorithm.anchor=average", "algorithm.lagged={average: {decay: linear, linear: [0, 0.2, 0.1, 0.9]}}",
    ],
    "awm t": ["algorithm.weighting=t", "algorithm.train_timesteps=2", "algorithm.clip_high=0.01"],
    "awm t2": ["algorithm.weighting=t2", "algorithm.times=logit_normal", "algorithm.time_stratified=true"],
    "awm huber": ["algorithm.weighting=huber", "algorithm.times=uniform", "algorithm.time_shift=2"],
    "awm kl": [
        "algorithm.train_timesteps=2", "algorithm.weighting=ghuber", "algorithm.kl_coef=0.1",
        "algorithm.old_kl_coef=0.1", "algorithm.old_decay=ema", "algorithm.old_ema=0.5",
    ],
    "crd reference": [
        "algorithm.train_timesteps=2", "algorithm.matching=mse", "algorithm.temperature=0.5",
        "algorithm.baseline=reference", "algorithm.kl_coef=0.1", "algorithm.kl_adaptive=true",
        "algorithm.kl_guidance=2", "algorithm.adaptive_weighting=false",
    ],
    "crd sampling": [
        "algorithm.train_timesteps=2", "algorithm.sample_with=sampling", "algorithm.old_policy_update_interval=2",
        "algorithm.lagged={sampling: {decay: ema, ema: 0.5}}",
    ],
    "crd kl": ["algorithm.train_timesteps=2", "algorithm.kl_coef=0.1", "algorithm.sample_with=old"],
    "dgpo kl": [
        "algorithm.train_timesteps=2", "algorithm.kl_coef=0.1", "algorithm.times=logit_normal", "algorithm.clip=0.001",
    ],
    "dgpo old": [
        "algorithm.train_timesteps=2", "algorithm.baseline=old", "algorithm.beta=2000", "algorithm.clip=0.001",
        "algorithm.clip_kl=true", "algorithm.kl_coef=0.1", "algorithm.reference_guidance=2",
    ],
    "diffusion_dpo sft": ["algorithm.train_timesteps=2", "algorithm.sft_coef=0.1", "algorithm.kind=ipo"],
    "diffusion_dpo schedule": ["algorithm.times=schedule", "algorithm.train_timesteps=3", "algorithm.min_margin=0.001"],
    "diffusion_dpo pairs": [*PAIRS, "algorithm.train_timesteps=2", "algorithm.label_smoothing=0.1"],
    "distill teachers": [
        "algorithm.teachers=[{guidance_scale: 2}, {path: 'burnish:quickstart/model', guidance_scale: 4}]",
        "model.lora=null",
    ],
    "distill kl": [
        "algorithm.objective=distill_kl", "algorithm.transition=sde",
        "algorithm.teachers=[{guidance_scale: 2}, {guidance_scale: 4}]",
    ],
    "draft lv": [*DIFFERENTIABLE, "algorithm.kind=draft_lv", "algorithm.last_steps=1", "algorithm.ceiling=0.5"],
    "draft lv level": [
        *DIFFERENTIABLE, "algorithm.kind=draft_lv", "algorithm.last_steps=1", "algorithm.renoise_level=0.1",
    ],
    "draft refl": [
        *DIFFERENTIABLE, "algorithm.kind=refl", "algorithm.last_steps=1", "algorithm.kl_coef=0.1",
        "algorithm.recompute=true",
    ],
    "sft best": ["algorithm.online=true", "algorithm.best=2", "data.train_files=burnish:quickstart/train.jsonl"],
}  # fmt: skip

GIVEN = ["algorithm.online=false", "rollout.n", "rollout.max_new_tokens=24"]
SAME = "burnish:vlm_quickstart"
LORA = ["model.lora.rank=4"]
GAME = [
    "environment.name=function", "environment.path=examples/grid_game.py:GridGame", "environment.max_turns=3",
    "rewards.environment.weight=1",
]  # fmt: skip
# of a reward model, which samples nothing: its rewards and what is not read are left out
JUDGES = [
    "rewards.format=null", "rewards.exact=null", "rewards.odd", "rollout.n", "validation.n", "scoring.processes",
    "data.train_batch_size=8", "rollout.max_new_tokens=32",
]  # fmt: skip
ADAPTIVE = "controller: adaptive, target: 0.1, horizon: 100"
SEEING: dict[str, list[str]] = {
    # every algorithm as its variant of the recipe has it
    "grpo": [],
    "dapo": ["algorithm.overlong.buffer=4"],
    "dr_grpo": [],
    "rloo": [],
    "remax": [],
    "reinforce": [],
    "reinforce_plus_plus": [],
    "reinforce_plus_plus_baseline": [],
    "gspo": [],
    "gmpo": [],
    "cispo": [],
    "sapo": [],
    "cpgd": [],
    "gdpo": [],
    "opo": [],
    "pass_at_k": [],
    "dppo": [],
    "clip_cov": ["algorithm.cov_low=0.1"],
    "kl_cov": [],
    "ppo": ["critic.warmup_updates=1"],
    "dpo": [],
    "ipo": [],
    "distill": ["algorithm.teachers=[{weights: initial}]", "algorithm.reward_coef=1"],
    "simpo": [],
    "mpo": [],
    "kto": [],
    "sft": [],
    # parts that policy gradients share
    "grpo one step": ["trainer.mini_batch_size=null", "trainer.epochs=1"],
    "grpo recomputed": ["algorithm.old_logprob=recompute", "trainer.layout=padded"],
    "grpo sampler": ["algorithm.old_logprob=sampler", "trainer.layout=packed"],
    "grpo kl": ["algorithm.kl={coef: 0.1, kind: unbiased}", "ema.decay=0.5", "trainer.layout=shared"],
    "grpo kl of adapters": [*LORA, "algorithm.kl={coef: 0.1, refresh_every: 1}"],
    "grpo kl in the reward": ["algorithm.kl={route: reward, coef: 0.1}"],
    "grpo kl adaptive": [f"algorithm.kl={{route: reward, kind: k2, {ADAPTIVE}}}"],
    "grpo kl of one step": ["trainer.mini_batch_size=null", "trainer.epochs=1", "algorithm.kl.coef=0.1"],
    "grpo kl adaptive loss": [f"algorithm.kl={{kind: k2, {ADAPTIVE}}}"],
    "grpo kl k1+": ["algorithm.kl={kind: k1+, coef: 0.1}", "model.freeze=[model.visual]"],
    "grpo kl k3+": ["algorithm.kl={kind: k3+, coef: 0.1}", "algorithm.loss_agg_mode=token-mean"],
    "grpo shaped": [
        "algorithm.reward_norm=true", "algorithm.reward_clip=1", "algorithm.overlong={buffer: 4}",
        "algorithm.mask_truncated=true", "algorithm.advantage_clip=1", "algorithm.entropy_coef=0.01",
        "algorithm.loss_agg_mode=seq-mean-token-sum",
    ],
    "grpo high entropy": [
        "algorithm.high_entropy_fraction=0.5", "algorithm.high_entropy_count=selected", "algorithm.dual_clip=3",
    ],
    "grpo filters": [
        "rollout.top_k=50", "rollout.top_p=0.9", "rollout.min_p=0.01", "rollout.repetition_penalty=1.1",
        "rollout.min_new_tokens=2", "rollout.fire_temperature=2", "rollout.temperature=0.9",
        "rollout.filter_groups.max_num_gen_batches=2",
    ],
    "grpo ptx": [f"ptx={{train_files: {SAME}/supervised.jsonl, batch_size: 2}}", "rollout.max_new_tokens=24"],
    "grpo rollouts": ["trainer.rollouts_per_update=2", "algorithm.advantage_std=global"],
    "grpo decoupled": [f"{CORRECTION}={{weights: step, batch_normalise: true}}"],
    "grpo bypass": [f"{CORRECTION}={{mode: bypass, weights: sample, lower: 0.5}}"],
    "grpo rejection": [f"{CORRECTION}={{weights: none, reject: seq_max_k3, reject_above: 2}}"],
    "grpo apart": [APART[0], f"{CORRECTION}={{reject: [token_k1, seq_max_k2], reject_above: [1.0001, 1.0e-7]}}"],
    "grpo apart bypass": [APART[0], f"{CORRECTION}={{mode: bypass, upper: 1.0001}}"],
    "grpo game": GAME,
    # what single algorithms add
    "dapo high entropy": ["algorithm.high_entropy_fraction=0.5", "algorithm.high_entropy_count=selected"],
    "dr_grpo length": ["algorithm.loss_length=16"],
    "gspo bypass": [f"{CORRECTION}={{mode: bypass, weights: step}}"],
    "cispo decoupled": [f"{CORRECTION}={{reject: token_k2, reject_above: 3}}", "algorithm.clip=0.1"],
    "cpgd filtered": ["algorithm.weighting=clip_filter"],
    "reinforce whitened": ["algorithm.whiten=true", "algorithm.gamma=0.9"],
    "reinforce game": [*GAME, "algorithm.turn_rewards=true", "algorithm.whiten=false"],
    "reinforce_plus_plus adaptive": [f"algorithm.kl={{route: reward, {ADAPTIVE}}}"],
    "ppo shared": [
        "critic.warmup_updates=0", "critic.trunk=shared", "critic.detach=false", "algorithm.lam=0.9",
        "algorithm.gamma=0.9",
    ],
    "ppo decoupled": [
        "critic.warmup_updates=0", "critic.trunk=shared", "algorithm.value_clip=null",
        f"{CORRECTION}={{reject: token_k2, reject_above: 3}}",
    ],
    "ppo game": [*GAME, "algorithm.turn_rewards=true", "critic.warmup_updates=0", *LORA],
    "dpo given": [*GIVEN, f"data.train_files={SAME}/preferences.jsonl", "data.train_batch_size=8"],
    "dpo rpo": ["algorithm.rpo_alpha=0.1", "algorithm.label_smoothing=0.1"],
    "ipo given": [
        *GIVEN, f"data.train_files={SAME}/preferences.jsonl", "data.train_batch_size=8",
        "algorithm.reference_free=true",
    ],
    "kto given": [*GIVEN, f"data.train_files={SAME}/unpaired.jsonl", "data.train_batch_size=8"],
    "kto weighted": ["algorithm.desirable_weight=2", "algorithm.reference_point=zero", "algorithm.threshold=0.5"],
    "sft best": ["algorithm.best=2"],
    "bradley_terry": [
        *JUDGES, f"data.train_files={SAME}/preferences.jsonl", f"data.val_files={SAME}/preferences.jsonl",
    ],
    "score_regression": [*JUDGES, "data.train_files=FILES/scores.jsonl", "data.val_files=FILES/scores.jsonl"],
    "process_reward": [*JUDGES, "data.train_files=FILES/steps.jsonl", "data.val_files=FILES/steps.jsonl"],
    "sft given": [*GIVEN, f"data.train_files={SAME}/supervised.jsonl", "data.train_batch_size=8"],
}  # fmt: skip

RAY = [
    "runtime=ray", "ray.address=local", "ray.init={num_cpus: 4, include_dashboard: false}", "ray.call_timeout=300",
    "ray.start_timeout=300",
]  # fmt: skip
AHEAD = [*RAY, "pools.rollout.processes=1", "pipeline.depth=1"]


def runs() -> dict[str, list[str]]:
    """Arguments of ``burnish train`` by the name of a run; ``FILES`` in them stands for a folder."""
    found = {
        "quickstart": ["quickstart", *WHOLE, "optimizer.schedule_updates=60"],
        "quickstart flow_grpo": [
            "quickstart", "algorithm=flow_grpo", "algorithm.kl_coef=0.01", *WHOLE, "optimizer.schedule_updates=80",
        ],
        "vlm_quickstart": ["vlm_quickstart", *WHOLE, "optimizer.schedule_updates=60"],
        "vlm_quickstart ppo": ["vlm_quickstart", "algorithm=ppo", *WHOLE, "critic.warmup_updates=1"],
        "vlm_quickstart lora": ["vlm_quickstart", *WHOLE, "model.lora.rank=8", "algorithm.kl.coef=0.01"],
    }  # fmt: skip
    for name, more in DRAWING.items():
        found[f"draw {name}"] = ["quickstart", f"algorithm={name.split()[0]}", *DRAW, *BRIGHT, *more]
    for name, more in SEEING.items():
        found[f"see {name}"] = ["vlm_quickstart", f"algorithm={name.split()[0]}", *SEE, *more]
    found |= {
        "ray draw ahead": ["quickstart", "algorithm=flow_grpo", *DRAW, *BRIGHT, *AHEAD],
        "ray see ahead": ["vlm_quickstart", *SEE, *AHEAD],
        "ray draw two ranks": ["quickstart", "algorithm=flow_grpo", *DRAW, *BRIGHT, *RAY, "pools.train.processes=2"],
        "ray see two ranks": ["vlm_quickstart", *SEE, *LORA, *RAY, "pools.train.processes=2"],
    }
    return {name.replace(" ", "-"): _last_given(options) for name, options in found.items()}


def _last_given(options: list[str]) -> list[str]:
    """Of options that are given twice the last one alone, and none whose last is a name without a value."""
    recipe, *rest = options
    return [recipe, *(option for option in {one.partition("=")[0]: one for one in rest}.values() if "=" in option)]


REWARDS = '''"""Rewards that differ between the samples of a prompt, whatever they are."""


def bright(images, prompts):
    return [float(image.mean()) / 255 for image in images]


def left(images, prompts):
    return [float(image[:, : image.shape[1] // 2].mean()) / 255 for image in images]


def odd(responses, prompts):
    return [sum(map(ord, one.text)) % 11 / 10 for one in responses]
'''


def write_files(folder: Path, pictures: Path) -> None:
    """Write what the options name.

    Args:
        folder: the one that ``FILES`` stands for.
        pictures: records with a prompt and a picture as a data URL, as the quickstart has them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rewards.py").write_text(REWARDS)
    records = [json.loads(line) for line in pictures.read_text().splitlines()[:16]]
    for number, record in enumerate(records):
        (folder / f"{number:02d}.png").write_bytes(base64.b64decode(record["image"].partition(",")[2]))
    last = len(records) - 1
    pairs = [
        {"prompt": record["prompt"], "chosen": f"{number:02d}.png", "rejected": f"{last - number:02d}.png"}
        for number, record in enumerate(records)
    ]
    scores = [{"prompt": "How much?", "response": f"{number}", "score": number / last} for number in range(last + 1)]
    steps = [
        {"prompt": "And then?", "steps": [f"{number}", "so"], "labels": [bool(number % 2), True]}
        for number in range(last + 1)
    ]
    for name, lines in (("pairs", pairs), ("scores", scores), ("steps", steps)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
