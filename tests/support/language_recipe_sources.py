"""What the recipes of language models were taken from; ``recipe_sources`` says what is what."""

from __future__ import annotations

from dataclasses import replace

from tests.support.recipe_sources import Source

# fmt: off
VERL = "volcengine/verl examples"
# verl counts a mini-batch in prompts; its trainer's defaults: clip, weight decay, betas, gradient norm, temperature
GEOMETRY = {
    "data.train_files": "hiyouga/geometry3k@train", "data.val_files": "hiyouga/geometry3k@test",
    "data.train_batch_size": 512, "data.max_prompt_length": 1024, "data.overlong": "filter",
    "rollout.n": 5, "rollout.max_new_tokens": 2048, "rollout.temperature": 1.0, "rollout.top_p": 1.0,
    "trainer.mini_batch_size": 128 * 5, "trainer.epochs": 1,
    "optimizer.lr": 1e-6, "optimizer.weight_decay": 0.01, "optimizer.betas": (0.9, 0.999),
    "optimizer.max_grad_norm": 1.0, "optimizer.schedule": "constant", "optimizer.warmup_steps": 0,
    "rewards.format.weight": 0.1, "rewards.format.form": "think_then_boxed", "rewards.numeric.weight": 0.9,
    "rewards.numeric.extract": "boxed", "validation.every": 5, "checkpoint.every": 20,
    "steps": 15 * (2101 // 512),
}
GRPO = {
    "algorithm.name": "grpo", "algorithm.clip": 0.2, "algorithm.kl.kind": "k3", "algorithm.kl.coef": 0.01,
    "algorithm.kl.route": "loss", "algorithm.entropy_coef": 0.0, "algorithm.loss_agg_mode": "token-mean",
    "algorithm.advantage_std": "group",
}
OURS = ("task", "data.system_prompt")
GROUNDED = {  # GRPO by TRL's trainer of early 2025, in open-r1-multimodal
    "rollout.n": 8, "rollout.max_new_tokens": 256, "trainer.mini_batch_size": None, "optimizer.lr": 1e-6,
    "algorithm.name": "grpo", "algorithm.kl.kind": "k3", "algorithm.kl.coef": 0.04, "algorithm.clip": 0.2,
    "algorithm.loss_agg_mode": "seq-mean-token-mean", "rewards.format.weight": 1.0,
}
TAKEN_OVER = f"settings of another model: {VERL}/grpo_trainer/run_qwen2_5_vl-7b.sh"
EASY = "hiyouga/EasyR1 examples"

GRPO_3B = f"{EASY}/config.yaml 0243608d, qwen2_5_vl_3b_geo3k_grpo.sh 4f003f7c"
GRPO_VL3 = f"{EASY}/config.yaml 0243608d, qwen3_vl_30b_geo3k_grpo.sh 4cafc912"
DAPO = Source(
    f"{EASY}/qwen3_14b_dapo17k_dapo.sh cb66e199",
    GEOMETRY | {
        "algorithm.name": "dapo", "algorithm.clip": 0.2, "algorithm.clip_high": 0.28, "algorithm.dual_clip": 10.0,
        "algorithm.kl": None, "algorithm.overlong.factor": 1.0, "rollout.filter_groups.max_num_gen_batches": 10,
    },
    differs={"algorithm.overlong.buffer": (410, 4096, "a fifth of the longest response")}, ours=OURS,
    unverified=("its batch: that of GRPO on this set",),
)
PPO = Source(
    f"{VERL}/ppo_trainer/run_qwen2-7b.sh 024d2cba",
    GEOMETRY | {
        "data.train_batch_size": 1024, "rollout.n": 1, "trainer.mini_batch_size": 256,
        "algorithm.name": "ppo", "algorithm.clip": 0.2, "algorithm.value_clip": 0.5, "algorithm.gamma": 1.0,
        "algorithm.lam": 1.0, "algorithm.loss_agg_mode": "token-mean",
        "algorithm.kl.route": "reward", "algorithm.kl.kind": "k1",
        "algorithm.kl.coef": 0.001, "critic.optimizer.lr": 1e-5, "critic.optimizer.weight_decay": 0.01,
        "critic.warmup_updates": 0, "steps": 15 * (2101 // 1024),
    }, ours=OURS,
)


def of_model(source: Source, path: str) -> Source:
    """The settings of a source for another size of the model."""
    return replace(source, values={**source.values, "model.path": path})


SMALL_QWEN25, SMALL_QWEN3 = "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen3-VL-4B-Instruct"

SOURCES = {
    "qwen25_vl/grpo": Source(f"{VERL}/grpo_trainer/run_qwen2_5_vl-7b.sh 04977608", GEOMETRY | GRPO, ours=OURS),
    "qwen25_vl/dapo": DAPO,
    "qwen25_vl/ppo": PPO,
    "qwen25_vl_3b/grpo": of_model(Source(GRPO_3B, GEOMETRY | GRPO, ours=OURS), SMALL_QWEN25),
    "qwen25_vl_3b/dapo": of_model(DAPO, SMALL_QWEN25),
    "qwen25_vl_3b/ppo": of_model(PPO, SMALL_QWEN25),
    "qwen3_vl/dapo": DAPO,
    "qwen3_vl/ppo": PPO,
    "qwen3_vl_4b/grpo": of_model(Source(GRPO_VL3, GEOMETRY | GRPO, ours=OURS), SMALL_QWEN3),
    "qwen3_vl_4b/dapo": of_model(DAPO, SMALL_QWEN3),
    "qwen3_vl_4b/ppo": of_model(PPO, SMALL_QWEN3),
    "qwen25_vl_72b/grpo": Source(
        TAKEN_OVER, {name: value for name, value in (GEOMETRY | GRPO).items() if name != "validation.every"},
        ours=(*OURS, "validation.every", "validation.before", "rollout.engine", "rollout.vllm", "threads",
              "trainer.micro_batch_tokens"),
    ),
    "qwen3_vl/grpo": Source(GRPO_VL3, GEOMETRY | GRPO, ours=OURS),
    "qwen35/grpo": Source(TAKEN_OVER, GEOMETRY | GRPO, ours=OURS),
    "qwen25_vl_3b/distill": Source(
        f"questions, lengths and optimizer: {VERL}/grpo_trainer/run_qwen2_5_vl-7b.sh 04977608; loss: arXiv:2306.13649",
        {name: value for name, value in GEOMETRY.items()
         if name.startswith(("optimizer.", "rewards.", "data.")) and name != "data.train_batch_size"} | {
            "algorithm.name": "distill", "algorithm.divergence": "reverse", "algorithm.over": "full",
            "algorithm.distill_coef": 1.0, "algorithm.reward_coef": 0.0, "rollout.max_new_tokens": 2048,
            "model.path": "Qwen/Qwen2.5-VL-3B-Instruct",
        },
        ours=(*OURS, "data.train_batch_size", "data.epochs", "rollout.n", "trainer.mini_batch_size",
              "algorithm.teachers"),
        unverified=("its rate, batch and length",),
    ),
    "qwen25_vl_refcoco/grpo": Source(
        "om-ai-lab/VLM-R1 src/open-r1-multimodal/run_grpo_rec.sh 6fd7e5ec",
        GROUNDED | {
            "model.path": "Qwen/Qwen2.5-VL-3B-Instruct", "data.max_prompt_length": 1024, "data.epochs": 2.0,
            "data.train_batch_size": 8 * 2, "optimizer.schedule": "linear",
            "rewards.format.form": "think_answer", "rewards.iou.extract": "tag",
        },
        ours=(*OURS, "data.overlong", "validation.max_prompts"),
        unverified=("what its command leaves to TRL's trainer: rate, KL, longest response",),
    ),
    "qwen25_vl_video/grpo": Source(
        "tulerfeng/Video-R1 src/scripts/run_grpo_video.sh, as copies of it have it; frames: arXiv:2503.21776",
        GROUNDED | {
            "model.path": "Qwen/Qwen2.5-VL-7B-Instruct", "data.train_batch_size": 8, "data.epochs": 1.0,
            "data.video_max_frames": 16, "data.video_max_pixels": 128 * 28 * 28, "rollout.max_new_tokens": 768,
            "optimizer.weight_decay": 0.01, "optimizer.schedule": "cosine", "optimizer.max_grad_norm": 5.0,
            "rewards.format.form": "think_answer",
        },
        ours=OURS,
        unverified=("the reduction of the loss: that of VLM-R1's trainer",),
    ),
    "qwen2_audio/grpo": Source(
        "arXiv:2503.11197; xiaomi-research/r1-aqa 9e582a20 src/dataset/dataset.py for the prompt",
        GROUNDED | {"model.path": "Qwen/Qwen2-Audio-7B-Instruct", "data.train_batch_size": 8, "steps": 500,
                    "optimizer.schedule": "constant", "rewards.format.form": "answer"},
        ours=("task", "data.audios_key", "data.template"),
        unverified=("optimizer and longest response: those of VLM-R1's trainer",),
    ),
    "gemma4/grpo": Source(TAKEN_OVER, GEOMETRY | GRPO, ours=OURS),
    "internvl35/grpo": Source(TAKEN_OVER, GEOMETRY | GRPO, ours=OURS),
}
# fmt: on
