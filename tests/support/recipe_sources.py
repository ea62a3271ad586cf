"""What the shipped recipes were taken from, and the values that stand there, in the words of our options.

``values`` are those of the source. Where a recipe differs on purpose, ``differs`` has its own value, the source's, and
words of the recipe (or of the base that it extends) which say why. ``ours`` are options that the source leaves open.
Read in public copies of the repositories named here; ``unverified`` says what was taken from a paper, or from others
who cite it, and was not read in the authors' own files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Source:
    where: str  # repository, file and name of the configuration, or table of a paper
    values: dict[str, Any]
    differs: dict[str, tuple[Any, Any, str]] = field(default_factory=dict)  # option: ours, theirs, words of the recipe
    ours: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()

    def over(self, base: dict[str, Any]) -> Source:
        """With what it shares with others of its model."""
        own = {*self.values, *self.differs, *self.ours}
        return Source(
            where=self.where,
            values={name: value for name, value in base.items() if name not in own} | self.values,
            differs=self.differs,
            ours=self.ours,
            unverified=self.unverified,
        )


# fmt: off
FLOW_GRPO = "yifan123/flow_grpo config/grpo.py"
GUARD = "yifan123/flow_grpo config/grpo_guard.py"
FACTORY = "X-GenGroup/Flow-Factory examples"
ADAM = {
    "optimizer.lr": 3e-4, "optimizer.weight_decay": 1e-4, "optimizer.betas": (0.9, 0.999), "optimizer.eps": 1e-8,
    "optimizer.max_grad_norm": 1.0, "optimizer.schedule": "constant",
}
# flow_grpo's config/base.py and scripts/train_sd3.py, train_flux.py (T5 tokens, adapters)
SD35 = ADAM | {
    "model.lora.rank": 32, "model.lora.alpha": 64.0, "data.train_batch_size": 48, "rollout.n": 24,
    "rollout.num_inference_steps": 10, "rollout.guidance_scale": 4.5, "rollout.height": 512, "rollout.width": 512,
    "rollout.max_sequence_length": 128, "trainer.mini_batch_size": 576, "trainer.epochs": 1,
}
FLUX = SD35 | {
    "model.lora.rank": 64, "model.lora.alpha": 128.0, "rollout.num_inference_steps": 6, "rollout.guidance_scale": 1.0,
    "rollout.embedded_guidance": 3.5,
}
EMA = {"ema.decay": (0.987, "0.9 at every eighth step", "0.9 at every eighth step")}
FULL = ADAM | {
    "optimizer.lr": 1e-5, "model.lora": None, "ema": None, "rollout.guidance_scale": 1.0,
    "rollout.embedded_guidance": 3.5, "rollout.height": 720, "rollout.width": 720, "rollout.max_sequence_length": 512,
    "rollout.schedule": "shift_once", "rollout.shift": 3.0, "steps": 300,
}
CLIPPED = {"algorithm.advantage_clip": 5.0, "algorithm.clip": 1e-4}
GLOBAL = {"algorithm.advantage_std": "global"}
GROUP = {"algorithm.advantage_std": "group"}
FORWARD = {"algorithm.train_guidance": "none", "algorithm.times": "schedule"}
DANCE = CLIPPED | GROUP | {
    "algorithm.transition": "dance", "algorithm.noise_level": 0.3, "algorithm.timestep_fraction": 0.6,
    "algorithm.shared_noise": True, "rollout.n": 12, "rollout.num_inference_steps": 16,
    "rollout.schedule": "shift_once", "rollout.shift": 3.0, "data.train_batch_size": 16, "trainer.mini_batch_size": 64,
    "steps": 300,
}
MIX = CLIPPED | GROUP | {
    "algorithm.transition": "sde", "algorithm.noise_level": 0.7, "algorithm.window.kind": "progressive",
    "algorithm.window.size": 4, "algorithm.window.stride": 1, "algorithm.window.every": 25,
    "algorithm.window.wrap": True, "algorithm.shared_noise": True, "algorithm.advantage_aggregation": "each",
    "algorithm.kl_coef": 0.0, "rollout.n": 12, "rollout.num_inference_steps": 25, "data.train_batch_size": 32,
    "trainer.mini_batch_size": 96, "steps": 300,
}
BRANCH = {
    "algorithm.transition": "dance", "algorithm.noise_level": 0.3, "algorithm.splits": [0, 3, 6, 9],
    "algorithm.clip": 1e-3, "algorithm.advantage_clip": 5.0, "rollout.n": 16, "rollout.num_inference_steps": 20,
    "rollout.schedule": "shift_once", "rollout.shift": 3.0, "data.train_batch_size": 16, "steps": 300,
    "algorithm.timestep_fraction": 1.0,  # the script's 0.6 is not read where the edges of a tree are gathered
}
FAST = GLOBAL | {
    "algorithm.transition": "cps", "algorithm.noise_level": 0.8, "algorithm.window.kind": "random",
    "algorithm.window.size": 3, "algorithm.shared_noise": False, "algorithm.clip": 1e-5,
    "algorithm.advantage_clip": 5.0, "algorithm.kl_coef": 0.0,
}
DGPO = FORWARD | GLOBAL | {
    "algorithm.beta": 100.0, "algorithm.clip": 1e-2, "algorithm.shared_noise": True, "algorithm.train_timesteps": 4,
    "algorithm.time_range": (0.3, 1.0), "algorithm.advantage_clip": 5.0, "algorithm.old_decay": "linear",
    "algorithm.old_linear": (1, 0, 1e-3, 0.3), "algorithm.old_decay_counts": "gradient_steps",
    "algorithm.kl_coef": 0.02, "data.train_batch_size": 8, "rollout.n": 16, "trainer.mini_batch_size": None,
}
TDM = GLOBAL | {
    "algorithm.train_timesteps": 2, "algorithm.beta": 10.0, "algorithm.clip": 1e-3, "algorithm.stray": 0.05,
    "algorithm.kl_coef": 1e-3, "algorithm.fake_kl_coef": 0.02, "algorithm.real_weight": 0.3,
    "algorithm.reward_steps": 4, "algorithm.reward_floor": 0.3, "algorithm.surrogate_floor": 0.3,
    "algorithm.level_shift": 3.0, "algorithm.advantage_clip": 5.0, "algorithm.surrogate_lag.decay": "linear",
    "algorithm.surrogate_lag.linear": (1, 0.001, 0.001, 0.3), "algorithm.surrogate_lag.counts": "gradient_steps",
    "algorithm.fake_optimizer.lr": 3e-4, "algorithm.fake_optimizer.betas": (0.0, 0.999),
    "algorithm.fake_optimizer.weight_decay": 1e-4, "algorithm.fake_optimizer.max_grad_norm": 1.0,
    "algorithm.surrogate_optimizer.lr": 3e-4, "algorithm.surrogate_optimizer.betas": (0.9, 0.999),
    "algorithm.surrogate_optimizer.weight_decay": 1e-4, "algorithm.surrogate_optimizer.max_grad_norm": 1.0,
    "optimizer.lr": 7.5e-5, "optimizer.betas": (0.0, 0.999), "ema.decay": 0.9, "ema.kind": "power", "ema.warm_up": 10,
    "rollout.num_inference_steps": 4, "validation.num_inference_steps": 4, "trainer.mini_batch_size": None,
}
CRD = FORWARD | GLOBAL | {
    "algorithm.beta": 1.0, "algorithm.matching": "mse", "algorithm.temperature": None, "algorithm.baseline": "old",
    "algorithm.adaptive_weighting": True, "algorithm.timestep_fraction": 0.99, "algorithm.old_decay": "linear",
    "algorithm.old_linear": (0, 0.25, 0.005, 0.999), "algorithm.old_decay_counts": "gradient_steps",
    "algorithm.advantage_clip": 5.0, "algorithm.kl_coef": 0.1, "algorithm.kl_adaptive": True,
    "algorithm.sample_with": "sampling", "algorithm.lagged.sampling.decay": "linear",
    "algorithm.lagged.sampling.linear": (75, 0, 0.0075, 0.999), "algorithm.lagged.sampling.counts": "gradient_steps",
}
AWM = FORWARD | GLOBAL | {
    "algorithm.weighting": "ghuber", "algorithm.ghuber_power": 0.25, "algorithm.clip": 1.0,
    "algorithm.advantage_clip": 5.0, "algorithm.advantage_max": 1.0, "rollout.n": 16, "trainer.mini_batch_size": None,
    "algorithm.sample_with": "policy", "algorithm.old_decay": "copy", "algorithm.anchor": "average",
    "algorithm.lagged.average.decay": "linear", "algorithm.lagged.average.counts": "gradient_steps",
}
DPPO = GLOBAL | {
    "algorithm.transition": "cps", "algorithm.noise_level": 0.7, "algorithm.window.kind": "random",
    "algorithm.window.size": 3, "algorithm.window.stop": 6, "algorithm.window.scattered": True,
    "algorithm.kl_threshold": 1e-6, "algorithm.kl_measure": "gaussian", "algorithm.kl_coef": 1e-3,
    "algorithm.kl_form": "means", "algorithm.advantage_clip": 5.0, "data.train_batch_size": 64, "rollout.n": 16,
    "rollout.num_inference_steps": 10, "trainer.mini_batch_size": 512,
}
TEMPFLOW = CLIPPED | GROUP | {
    "algorithm.transition": "sde", "algorithm.noise_level": 0.7, "algorithm.noise_weighting": "std",
    "model.lora.rank": 32, "model.lora.alpha": 64.0,
}
TEACHING = (
    "optimizer.lr", "trainer.mini_batch_size", "rollout.n", "rollout.num_inference_steps", "algorithm.window.kind",
    "algorithm.window.size", "algorithm.window.scattered", "algorithm.objective",
)  # fmt: skip
IMITATING = ("data.train_files", "data.train_batch_size", "trainer.mini_batch_size", "optimizer.lr",
             "optimizer.warmup_steps", "rollout.num_inference_steps")  # fmt: skip
# fmt: on

SOURCES: dict[str, Source] = {
    "sd35/flow_grpo": Source(
        f"{FLOW_GRPO}:general_ocr_sd3",
        CLIPPED | GLOBAL | {"algorithm.transition": "sde", "algorithm.noise_level": 0.7, "algorithm.kl_coef": 0.04,
                            "algorithm.kl_form": "published"},
        EMA,
    ).over(SD35),
    "flux/flow_grpo": Source(
        f"{FLOW_GRPO}:pickscore_flux",
        CLIPPED | GLOBAL | {"algorithm.transition": "sde", "algorithm.noise_level": 0.9, "algorithm.kl_coef": 0.0},
        EMA,
    ).over(FLUX),
    "sd35/flow_grpo_fast": Source(
        f"{FLOW_GRPO}:pickscore_sd3_fast_nocfg",
        FAST | {"algorithm.window.stop": 5, "data.train_batch_size": 64, "rollout.n": 18,
                "rollout.guidance_scale": 1.0},
        EMA,
    ).over(SD35),
    "flux/flow_grpo_fast": Source(
        f"{FLOW_GRPO}:pickscore_flux_fast", FAST | GROUP | {"algorithm.window.stop": 3}, EMA
    ).over(FLUX),
    "sd35/grpo_guard": Source(
        f"{GUARD}:general_ocr_sd3_rationorm",
        GROUP | {"algorithm.transition": "sde", "algorithm.noise_level": 0.7, "algorithm.clip": 2e-6,
                 "algorithm.balance": True, "algorithm.kl_coef": 0.0, "algorithm.advantage_clip": 5.0,
                 "optimizer.lr": 1e-4},
        EMA,
    ).over(SD35),
    "flux/grpo_guard": Source(
        f"{GUARD}:pickscore_hps_sd3_ratio_norm, and {FLOW_GRPO}:pickscore_flux",
        GROUP | {"algorithm.transition": "sde", "algorithm.noise_level": 0.9, "algorithm.clip": 4e-6,
                 "algorithm.balance": True, "algorithm.kl_coef": 0.0, "optimizer.lr": 1e-4},
        EMA,
        unverified=("for FLUX.1 none were released",),
    ).over(FLUX),
    "flux/dance_grpo": Source(
        "XueZeyue/DanceGRPO scripts/finetune/finetune_flux_grpo.sh", DANCE
    ).over(FULL),
    "sd35/dance_grpo": Source(
        "XueZeyue/DanceGRPO scripts/finetune/finetune_flux_grpo.sh; sampling, adapters and optimizer of flow_grpo",
        DANCE, EMA,
    ).over(SD35),
    "flux/mix_grpo": Source(
        "Tencent-Hunyuan/MixGRPO scripts/finetune/finetune_flux_grpo_MixGRPO.sh", MIX
    ).over(FULL),
    "sd35/mix_grpo": Source(
        "Tencent-Hunyuan/MixGRPO scripts/finetune/finetune_flux_grpo_MixGRPO.sh; the rest of flow_grpo", MIX, EMA
    ).over(SD35),
    "flux/branch_grpo": Source(
        "Fredreic1849/BranchGRPO scripts/finetune/finetune_flux_branchgrpo_8gpus.sh",
        BRANCH,
        {"trainer.mini_batch_size": (None, "12 batches of 2 per process", "one optimizer step per update")},
    ).over(FULL),
    "sd35/branch_grpo": Source(
        "Fredreic1849/BranchGRPO scripts/finetune/finetune_flux_branchgrpo_8gpus.sh; the rest of flow_grpo",
        BRANCH,
        EMA | {"trainer.mini_batch_size": (None, "12 batches of 2 per process", "one optimizer step per update")},
    ).over(SD35),
    "sd35/tempflow_grpo": Source(
        "Shredded-Pork/TempFlow-GRPO config/dgx.py:pickscore_sd3",
        TEMPFLOW | {"algorithm.kl_coef": 1e-3, "steps": 1000},
        EMA | {"algorithm.window.kind": ("random", "every step in turn", "The paper branches at every step in turn")},
        unverified=("clip and noise are those of flow_grpo's config/base.py, which its own is a copy of",),
    ).over(SD35),
    "flux/tempflow_grpo": Source(
        "Shredded-Pork/TempFlow-GRPO config/dgx.py:flux, scripts/train_flux.py",
        TEMPFLOW | {"algorithm.kl_coef": 4e-3, "rollout.num_inference_steps": 10, "rollout.height": 1024,
                    "rollout.width": 1024, "steps": 250},
        EMA | {"algorithm.window.kind": ("random", "every step in turn", "The paper branches at every step in turn")},
        unverified=("clip and noise are those of flow_grpo's config/base.py, which its own is a copy of",),
    ).over(FLUX),
    "sd35/flow_dppo": Source(
        f"{FACTORY}/dppo/lora/sd3_5/geneval2_single.yaml",
        DPPO | {"rollout.guidance_scale": 1.0, "steps": 3000},
        {"ema.decay": (0.987, "0.9 at every fourth epoch", "0.9 at every eighth step")},
    ).over(SD35),
    "flux/flow_dppo": Source(
        f"{FACTORY}/dppo/lora/sd3_5/geneval2_single.yaml; adapters and embedded guidance of flow_grpo", DPPO, EMA
    ).over(FLUX),
    "sd35/diffusion_nft": Source(
        "NVlabs/DiffusionNFT config/nft.py:sd3_ocr",
        FORWARD | GLOBAL | {
            "algorithm.beta": 0.1, "algorithm.old_decay": "delayed_linear_to_0_999",
            "algorithm.old_decay_counts": "gradient_steps", "algorithm.timestep_fraction": 0.99,
            "algorithm.advantage_clip": 5.0, "algorithm.advantage_mode": "continuous",
            "algorithm.adaptive_weighting": True, "algorithm.kl_coef": 1e-4, "rollout.guidance_scale": 1.0,
            "rollout.solver": "dpm2m",
        },
        EMA,
    ).over(SD35),
    "flux/diffusion_nft": Source(
        f"{FACTORY}/nft/lora/flux1/default.yaml",
        FORWARD | GROUP | {
            "algorithm.beta": 1.0, "algorithm.old_decay": "linear_to_0_5",
            "algorithm.old_decay_counts": "gradient_steps", "algorithm.train_timesteps": 2,
            "algorithm.time_range": (0.3, 1.0), "algorithm.advantage_clip": 5.0, "algorithm.kl_coef": 0.0,
            "rollout.n": 16, "rollout.num_inference_steps": 8, "rollout.height": 384, "rollout.width": 384,
            "trainer.mini_batch_size": None,
        },
        EMA | {"rollout.embedded_guidance": (3.5, 1.0, "later files of Flow-Factory have 1.0")},
    ).over(FLUX),
    "sd35/dgpo": Source(
        "Luo-Yihong/DGPO config/dgpo.py:general_ocr_sd3_4gpu",
        DGPO | {
            "model.lora.rank": 64, "model.lora.alpha": 128.0, "rollout.guidance_scale": 4.5, "rollout.solver": "dpm2m",
            "rollout.schedule": "shift_once", "algorithm.sample_with": "sampling",
            "algorithm.lagged.sampling.decay": "linear",
        },
        EMA | {"algorithm.lagged.sampling.linear": (
            (200, 0.2, 1e-3, 0.3), "the policy for 200 steps, then the old one", "begins anew there",
        )},
    ).over(SD35),
    "flux/dgpo": Source(
        "Luo-Yihong/DGPO config/dgpo.py:general_ocr_sd3_4gpu; adapters and embedded guidance of flow_grpo",
        DGPO | {"rollout.num_inference_steps": 10}, EMA,
    ).over(FLUX),
    "sd35/tdm_r1": Source(
        "Luo-Yihong/TDM-R1 0c37f9fe config/tdmr1_clean.py:general_ocr_sd3_8gpu_G24_4step, cc55d897 config/base.py, "
        "1ee7d9f2 scripts/train_tdmr1_pub.py",
        TDM | {
            "algorithm.reward_guidance": 4.5, "algorithm.real_guidance": 4.5, "rollout.guidance_scale": 1.0,
            "rollout.solver": "dpm2m", "rollout.schedule": "shift_once",
        },
        {"model.lora.path": ("adapters/tdm_sd35", "Luo-Yihong/TDM_sd3-5_lora", "a .ckpt with a list of tensors")},
    ).over(SD35),
    "flux/tdm_r1": Source(
        "Luo-Yihong/TDM-R1 config/tdmr1_clean.py:general_ocr_sd3_8gpu_G24_4step; adapters and embedded guidance of "
        "flow_grpo",
        TDM, ours=("model.lora.path", "algorithm.reward_guidance", "algorithm.real_guidance"),
    ).over(FLUX),
    "sd35/crd": Source(
        f"{FACTORY}/crd/lora/sd3_5/default.yaml (paper, table 3)",
        CRD | {"algorithm.kl_guidance": 4.5, "rollout.guidance_scale": 1.0},
        EMA,
    ).over(SD35),
    "flux/crd": Source(
        f"{FACTORY}/crd/lora/sd3_5/default.yaml (paper, table 3); adapters and embedded guidance of flow_grpo",
        CRD | {"algorithm.kl_guidance": None, "rollout.num_inference_steps": 10}, EMA,
    ).over(FLUX),
    "sd35/awm": Source(
        f"{FACTORY}/awm/lora/sd3_5/default.yaml",
        AWM | {"algorithm.train_timesteps": 6, "algorithm.time_range": (0.1, 0.92),
               "algorithm.lagged.average.linear": (0, 0, 3e-4, 0.3), "algorithm.old_kl_coef": 1.0,
               "algorithm.kl_coef": 1e-4,
               "rollout.num_inference_steps": 14, "rollout.guidance_scale": 1.0},
        EMA,
    ).over(SD35),
    "flux/awm": Source(
        f"{FACTORY}/awm/lora/flux1/default.yaml",
        AWM | {"algorithm.train_timesteps": 4, "algorithm.time_range": (0.3, 1.0),
               "algorithm.lagged.average.linear": (0, 0, 1e-3, 0.3), "algorithm.old_kl_coef": 0.1,
               "algorithm.kl_coef": 0.0,
               "rollout.num_inference_steps": 10},
        EMA,
    ).over(FLUX),
    "sd35/diffusion_dpo": Source(
        "arXiv:2311.12908, section 5.1 (its Stable Diffusion 1.5 run); adapters of flow_grpo",
        {"algorithm.online": False, "algorithm.beta": 5000.0, "algorithm.times": "uniform",
         "algorithm.train_timesteps": 1, "algorithm.train_guidance": "none", "data.train_batch_size": 2048,
         "optimizer.lr": 2.05e-5, "optimizer.warmup_steps": 500, "trainer.mini_batch_size": None, "ema": None,
         "steps": 2000},
        {"model.lora.rank": (32, "all weights", "Of all weights there are adapters here")},
        ours=("data.train_files", "rollout.n"),
        unverified=("the paper's own table: SalesforceAIResearch/DiffusionDPO was not read",),
    ).over(SD35),
    "flux/diffusion_dpo": Source(
        f"{FACTORY}/dpo/lora/flux1.yaml",
        {"algorithm.online": True, "algorithm.beta": 2000.0, "algorithm.times": "logit_normal",
         "algorithm.time_mean": 0.0, "algorithm.time_std": 1.0, "algorithm.train_timesteps": 1,
         "algorithm.train_guidance": "none", "data.train_batch_size": 32, "rollout.n": 4,
         "rollout.num_inference_steps": 28, "trainer.mini_batch_size": 64, "optimizer.lr": 1e-6},
        {"ema.decay": (0.9995, "0.995 at every tenth step", "0.995 at every tenth step")},
    ).over(FLUX),
    "sd35/distill": Source(
        "arXiv:2210.03142; guidance and adapters of flow_grpo",
        {"algorithm.teachers.0.guidance_scale": 4.5, "rollout.guidance_scale": 1.0}, EMA,
        ours=TEACHING, unverified=("rate and batch are ours",),
    ).over(SD35),
    "flux/distill": Source(
        "arXiv:2210.03142; adapters of flow_grpo", {}, EMA,
        ours=(*TEACHING, "algorithm.teachers.0.guidance_scale"), unverified=("rate and batch are ours",),
    ).over(FLUX),
    **{
        f"{family}/sft": Source(
            "arXiv:2403.03206, section 5.3.2 and its shift of 3; adapters of flow_grpo",
            {"algorithm.times": "logit_normal", "algorithm.time_mean": 0.0, "algorithm.time_std": 1.0,
             "algorithm.time_shift": 3.0, "algorithm.train_guidance": "none"}, EMA,
            ours=(*IMITATING, *more), unverified=("rate and batch are ours",),
        ).over(base)
        for family, base, more in (("sd35", SD35, ["algorithm.prompt_dropout"]), ("flux", FLUX, []))
    },
    **{
        f"{family}/draft": Source(
            "arXiv:2309.17400, DRaFT-LV (two fresh noises); adapters and optimizer of flow_grpo",
            {"algorithm.kind": "draft_lv", "algorithm.renoised": 2}, EMA,
            ours=("data.train_batch_size", "rollout.n", "trainer.mini_batch_size", *more),
            unverified=("no configuration of the authors was read",),
        ).over(base)
        for family, base, more in (("sd35", SD35, []), ("flux", FLUX, ["rollout.num_inference_steps"]))
    },
}  # fmt: skip

# options of a recipe that decide nothing about what is learned, and those whose value is its own name or reward
OPERATIONAL = (
    "hardware",
    "extends", "output_dir", "rewards", "model.path", "model.dtype", "model.gradient_checkpointing", "data.val_files",
    "data.train_files", "data.fit", "data.prompt_key", "data.images_key", "rollout.batch_size", "rollout.trajectories",
    "trainer.micro_batch_size", "trainer.micro_batch_tokens", "validation", "checkpoint", "scoring", "algorithm.name",
)  # fmt: skip
