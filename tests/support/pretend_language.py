"""Every algorithm that trains a language model, with its main options: what runs on a pretended GPU."""

from __future__ import annotations

from pathlib import Path

from burnish.registry import lookup
from tests.support.tiny_recipes import language_recipe, write_language_models, write_recipe

# the last three are no family of ours: sliding windows, recurrent states, Burnish's own plan
FAMILIES = ["llama", "qwen2", "qwen2_5_vl", "qwen3_vl", "smolvlm", "qwen3_moe", "gemma3", "qwen3_5", "internvl"]
CORRECTION = "algorithm.rollout_correction"
ALL = ["model.lora=null"]
SEVERAL = ["trainer.mini_batch_size=4", "trainer.epochs=2", "trainer.micro_batch_tokens=60"]
GIVEN = ["algorithm.online=false"]
JUDGES = ["rewards.odd=null"]
GAME = [
    "environment.name=function", "environment.path=tests.support.games:Show", "environment.max_turns=3",
    "environment.arguments={opening: true, pictures: true, fails: '', turns: 3}", "rewards.environment.weight=0.5",
    "rollout.max_new_tokens=4",
]  # fmt: skip
TOLD = [option for option in GAME if not option.startswith("environment.arguments")]
SILENT = "environment.arguments={opening: false, pictures: false, fails: '', turns: 3}"
FILTERS = [
    "rollout.top_k=50", "rollout.top_p=0.9", "rollout.min_p=0.01", "rollout.repetition_penalty=1.1",
    "rollout.min_new_tokens=2", "rollout.fire_temperature=2", "rollout.stop=[zz]", "rollout.temperature=0.9",
]  # fmt: skip
ADAPTIVE = ["algorithm.kl={controller: adaptive, target: 0.1, horizon: 100}"]
# by name: the family, and options; the first word is the algorithm's name
CASES: dict[str, tuple[str, list[str]]] = {
    "grpo": ("qwen2_5_vl", []),
    "grpo kl": ("llama", [*ALL, "algorithm.kl={coef: 0.1, kind: unbiased}", "ema.decay=0.5", *SEVERAL]),
    "grpo kl of adapters": ("qwen2", ["algorithm.kl={coef: 0.1, refresh_every: 1}", "trainer.layout=packed"]),
    "grpo kl of dora": (
        "qwen2_5_vl",
        ["algorithm.kl={coef: 0.1, refresh_every: 1}", "model.lora.dora=true", "model.lora.rslora=true",
         "model.lora.modules_to_save=[lm_head, layers.0.mlp]", "model.lora.exclude=[v_proj]"],
    ),
    "grpo kl in the reward": ("qwen2", ["algorithm.kl={route: reward, coef: 0.1}", "trainer.layout=padded"]),
    "grpo adaptive": ("llama", [*ADAPTIVE, "algorithm.kl.route=reward", "algorithm.kl.kind=k2"]),
    "grpo filters": ("llama", [*FILTERS, "rollout.batch_size=3", "rollout.filter_groups.max_num_gen_batches=2"]),
    "grpo shaped": (
        "llama",
        ["algorithm.reward_norm=true", "algorithm.reward_clip=1", "algorithm.overlong={buffer: 2}",
         "algorithm.mask_truncated=false", "algorithm.advantage_clip=1", "algorithm.entropy_coef=0.01"],
    ),
    "grpo entropy": ("llama", ["algorithm.high_entropy_fraction=0.5", *SEVERAL, "algorithm.dual_clip=3"]),
    "grpo ptx": ("llama", ["ptx={{train_files: {folder}/llama-demonstrations.jsonl, batch_size: 2}}", *ALL]),
    "grpo weights": ("llama", [f"{CORRECTION}={{weights: step, batch_normalise: true}}", *SEVERAL]),
    "grpo bypass": ("llama", [f"{CORRECTION}={{mode: bypass, weights: sample, lower: 0.5}}", *SEVERAL]),
    "grpo rejection": ("llama", [f"{CORRECTION}={{weights: none, reject: seq_max_k3, reject_above: 2}}"]),
    "grpo game": ("qwen2_5_vl", GAME),
    "grpo experts": ("qwen3_moe", ALL),
    "grpo checkpointing": ("qwen3_vl", ["model.gradient_checkpointing=true", *ALL, "model.freeze=[model.visual]"]),
    "grpo quantised": ("qwen2_5_vl", ["model.quantization.weights=fp8_cast"]),
    "grpo own cache": ("gemma3", SEVERAL),
    "grpo own plan": ("internvl", ["algorithm.kl={coef: 0.1}"]),
    "grpo own game": ("gemma3", [*TOLD, SILENT, "environment.kept_gb=0.5"]),
    "grpo own rewritten game": ("qwen3_5", [*TOLD, SILENT, "environment.history=template"]),
    "dapo": ("smolvlm", ["algorithm.overlong={buffer: 2}", *SEVERAL]),
    "dr_grpo": ("llama", ["algorithm.loss_length=8"]),
    "gspo": ("llama", SEVERAL),
    "gmpo": ("qwen2", SEVERAL),
    "cispo": ("llama", [*SEVERAL, *ALL]),
    "sapo": ("qwen3_vl", SEVERAL),
    "cpgd": ("llama", [*SEVERAL, "algorithm.weighting=clip_filter"]),
    "gdpo": ("llama", SEVERAL),
    "opo": ("llama", SEVERAL),
    "pass_at_k": ("llama", ["algorithm.pass_k=2", "algorithm.pass_reward=0.5"]),
    "dppo": ("llama", [*SEVERAL, "algorithm.divergence=kl"]),
    "clip_cov": ("llama", [*SEVERAL, "algorithm.cov_low=-5", "algorithm.cov_fraction=0.1"]),
    "kl_cov": ("llama", [*SEVERAL, "algorithm.cov_fraction=0.1"]),
    "distill": ("llama", [*SEVERAL, "algorithm.teachers=[{{path: {folder}/llama}}]", "algorithm.reward_coef=0.5"]),
    "distill top_k": (
        "qwen2",
        ["algorithm.teachers=[{{path: {folder}/qwen2}}]", "algorithm.over=top_k", "algorithm.top_k=4",
         "algorithm.divergence=jsd"],
    ),
    "distill sampled": (
        "qwen2",
        ["algorithm.teachers=[{weights: initial}]", "algorithm.over=sampled", "algorithm.reward_coef=1"],
    ),
    "rloo": ("llama", []),
    "remax": ("qwen2", []),
    "reinforce": ("llama", ["algorithm.whiten_std=biased"]),
    "reinforce_plus_plus": ("llama", ADAPTIVE),
    "reinforce_plus_plus_baseline": ("llama", [*ALL, "algorithm.whiten=true"]),
    "ppo": ("qwen2_5_vl", [*SEVERAL, "critic.warmup_updates=0"]),
    "ppo warm": ("llama", [*ALL, "critic.warmup_updates=1", "algorithm.kl={route: reward}"]),
    "ppo shared": ("llama", ["critic.trunk=shared", "critic.detach=false", "algorithm.lam=0.9", "algorithm.gamma=0.9"]),
    "ppo own": ("qwen3_5", [*ALL, "critic.trunk=shared"]),
    "ppo game": ("qwen2_5_vl", [*GAME, "algorithm.turn_rewards=true", "critic.trunk=shared", *ALL]),
    "dpo": ("llama", ["algorithm.rpo_alpha=0.1", "algorithm.label_smoothing=0.1"]),
    "dpo given": ("qwen2_5_vl", [*GIVEN, *ALL]),
    "ipo": ("llama", [*ALL, "algorithm.average_log_prob=true"]),
    "ipo given": ("qwen2", [*GIVEN, "algorithm.reference_free=true"]),
    "simpo": ("llama", []),
    "mpo": ("llama", []),
    "mpo given": ("qwen2", GIVEN),
    "kto": ("llama", ["algorithm.desirable_weight=2", "algorithm.reference_point=opposite"]),
    "kto given": ("qwen2", [*GIVEN, *ALL, "trainer.micro_batch_tokens=40"]),
    "sft": ("llama", ["algorithm.online=true", "algorithm.best=2"]),
    "sft given": ("smolvlm", [*GIVEN, *ALL]),
    "bradley_terry": ("qwen2_5_vl", [*JUDGES, "algorithm.center_coef=0.1"]),
    "bradley_terry ties": ("llama", [*JUDGES, *ALL, "algorithm.ties=davidson", "algorithm.heads=[a]"]),
    "score_regression": ("smolvlm", [*JUDGES, *ALL, "trainer.micro_batch_tokens=40"]),
    "process_reward": ("qwen2_5_vl", JUDGES),
}  # fmt: skip


def write_files(folder: Path) -> None:
    """Models, records and rewards of all cases, and a recipe for each family."""
    write_language_models(folder, FAMILIES)
    for family in FAMILIES:
        write_recipe(folder / f"{family}.yaml", language_recipe(folder, family))


def options(folder: Path, name: str) -> tuple[Path, list[str]]:
    family, given = CASES[name]
    algorithm = name.split()[0]
    chosen = {"online": False} if GIVEN[0] in given else {"online": True} if algorithm == "sft" else {}
    data = lookup("language algorithm", algorithm)(**chosen).needs().data
    filled = [option.format(folder=folder) if "{folder}" in option else option for option in given]
    return folder / f"{family}.yaml", [
        f"algorithm={algorithm}", f"data.train_files={folder / f'{family}-{data}.jsonl'}", *filled,
    ]  # fmt: skip
