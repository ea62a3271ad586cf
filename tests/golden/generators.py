"""Golden runs of diffusion and flow generators: every algorithm, and every part of the mathematics that one can choose.

By name: the model, as ``burnish tiny`` knows it, and options. The first word of a name is the algorithm.
"""

CORRECTION = "algorithm.rollout_correction"
ALL = "model.lora=null"
LOW = "model.dtype=bfloat16"
ONE_STEP = ["trainer.mini_batch_size=null", "trainer.epochs=1"]
GUIDED = "rollout.guidance_scale=2"
TWO_REWARDS = "rewards.left={name: function, path: '{files}/rewards.py:left', weight: -0.5}"
WATCHED = "rewards.left={name: function, path: '{files}/rewards.py:left', weight: 0}"
DIFFERENTIABLE = ["rewards.brightness=null", "rewards.border_darkness.weight=-1"]
RECORDS = ["data.train_files={files}/pictures.jsonl", "trainer.mini_batch_size=1"]
PAIRS = ["algorithm.online=false", "data.train_files={files}/pairs.jsonl", "trainer.mini_batch_size=1"]
SCORED = ["data.scores={score: 1, other: -0.5}", "data.train_files={files}/picture_scores.jsonl", "rollout.n=2",
          "trainer.mini_batch_size=2"]  # fmt: skip
LTX2 = ["rollout.height=32", "rollout.width=32", "rollout.num_frames=9",
        "rollout.call={max_sequence_length: 16, stg_scale: 0, audio_stg_scale: 0, modality_scale: 1, "
        "audio_modality_scale: 1}",
        "rewards.loud={name: function, path: '{files}/rewards.py:loud'}"]  # fmt: skip
NO_SIZE = ["rollout.height=null", "rollout.width=null"]
TWO_TIMES = "algorithm.train_timesteps=2"
TEACHERS = "algorithm.teachers=[{guidance_scale: 2}, {path: '{files}/flux', guidance_scale: 4}]"
# folded adapters in few bits: the policy that samples is not quite the one that learns
APART = [LOW, "rollout.merge_lora=true"]

RUNS: dict[str, tuple[str, list[str]]] = {
    # policy gradients: transitions, guidance, and what a ratio is taken from
    "flow_grpo": ("sd3", [GUIDED]),
    "flow_grpo sde": ("flux", ["algorithm.transition=sde", ALL, "rollout.embedded_guidance=2.5", *ONE_STEP]),
    "flow_grpo cps": ("sd3", ["algorithm.transition=cps", "rollout.batch_size=3", "rollout.trajectories=host"]),
    "flow_grpo noise": ("sdxl", [GUIDED, ALL]),
    "flow_grpo v": ("sd1.5", ["algorithm.kl_coef=0.1"]),
    "flow_grpo bfloat16": ("lumina2", [LOW, "algorithm.timestep_fraction=0.5"]),
    "flow_grpo kl": ("sd3", ["algorithm.kl_coef=0.1", ALL, "ema.decay=0.5", "optimizer.warmup_steps=2"]),
    "flow_grpo kl exact": ("flux", ["algorithm.kl_coef=0.1", "algorithm.kl_form=exact", "algorithm.transition=sde"]),
    "flow_grpo kl means": ("qwen-image", ["algorithm.kl_coef=0.1", "algorithm.kl_form=means", "algorithm.clip=0.01"]),
    "flow_grpo recomputed": ("flux", ["algorithm.old_logprob=recompute", "trainer.micro_batch_size=4"]),
    "flow_grpo sampler": ("flux", ["algorithm.old_logprob=sampler", "rollout.merge_lora=false"]),
    # rewards, advantages and groups
    "flow_grpo best of": ("flux", ["algorithm.best_of=2", "algorithm.advantage_std=none"]),
    "flow_grpo each": ("flux", [TWO_REWARDS, "algorithm.advantage_aggregation=each",
        "algorithm.advantage_unbiased=true"]),
    "flow_grpo gdpo": ("flux", [TWO_REWARDS, "algorithm.advantage_aggregation=gdpo", ALL]),
    "flow_grpo global": ("flux", [TWO_REWARDS, "algorithm.advantage_std=global", "algorithm.advantage_clip_low=-1"]),
    "flow_grpo filtered": ("flux", ["rollout.candidates={n: 6, num_inference_steps: 2}",
        "rollout.filter_groups.max_num_gen_batches=2"]),
    "flow_grpo replay": ("flux", ["rollout.filter_groups.replay_buffer=4",
        "rewards.brightness={name: function, path: '{files}/rewards.py:dull'}"]),
    "flow_grpo supervised": ("flux", ["supervised={train_files: '{files}/pictures.jsonl', batch_size: 2}"]),
    # corrections of what another policy sampled
    "flow_grpo decoupled": ("flux",
        [ALL, f"{CORRECTION}={{weights: sample, measure: mean, upper: 1.5, lower: 0.9, batch_normalise: true}}"]),
    "flow_grpo bypass": ("flux", [f"{CORRECTION}={{mode: bypass, weights: sample, lower: 0.5}}", *ONE_STEP]),
    "flow_grpo rejections": ("flux",
        [f"{CORRECTION}={{weights: none, reject: [seq_mean_k1, token_k2, seq_max_k3], reject_above: [2, 0.001, 2]}}"]),
    "flow_grpo apart": ("flux", [*APART,
        f"{CORRECTION}={{reject: [token_k1, seq_sum_k2], reject_above: [1.5, 200.04]}}"]),
    "flow_grpo apart bypass": ("flux", [*APART, f"{CORRECTION}={{mode: bypass, upper: 1.0005}}"]),
    # which steps are trained, and how the path is solved
    "flow_grpo fixed": ("flux", ["algorithm.window={kind: fixed, size: 2, scattered: false}",
        "rollout.schedule=shift_once", "rollout.shift=2"]),
    "flow_grpo last": ("flux", ["algorithm.window={kind: last, size: 2, scattered: false}",
        "algorithm.shared_noise=true"]),
    "flow_grpo shared": ("flux", ["algorithm.window={kind: random, size: 2, shared_by: update}"]),
    "flow_grpo_fast": ("flux", [ALL]),
    "mix_grpo linear": ("flux",
        ["algorithm.window={kind: progressive, size: 1, every: 2, interval: linear, wrap: true}",
        "rollout.solver=dpm2m", "validation.solver=euler", "rollout.cache_interval=2"]),
    "mix_grpo faster": ("flux",
        ["algorithm.window={kind: progressive, size: 2, every: 1, interval: exponential, stride: 3}", ALL]),
    "mix_grpo flash": ("flux", ["algorithm.window={kind: progressive, size: 1}", "algorithm.steps_after=0.5"]),
    "dance_grpo": ("z-image", ["algorithm.timestep_fraction=0.5"]),
    "grpo_guard": ("flux", []),
    "grpo_guard kl": ("flux", ["algorithm.kl_coef=0.1", "algorithm.balance=false", ALL]),
    "flow_dppo": ("flux", [CORRECTION + "={reject: token_k2, reject_above: 3}"]),
    "flow_dppo means": ("flux", ["algorithm.kl_measure=means", "algorithm.kl_coef=0.1", ALL]),
    "tempflow_grpo": ("flux", [ALL]),
    "tempflow_grpo plain": ("flux", ["algorithm.noise_weighting=none"]),
    "gardo": ("flux", [WATCHED, "algorithm.kl_gate={name: disagreement, against: [left], share: 0.5}",
        "algorithm.diversity=left", "algorithm.lagged={reference: {update_interval: 2}}"]),
    "branch_grpo": ("sd3", ["algorithm.splits=[0, 1]"]),
    "branch_grpo extreme": ("flux", ["algorithm.splits=[0, 2]", "algorithm.leaf_pruning=extreme",
        "algorithm.keep_leaves=2", CORRECTION + "={reject: token_k2, reject_above: 3}"]),
    "branch_grpo parents": ("flux", ["algorithm.splits=[0, 2]", "algorithm.leaf_pruning=parent_best",
        "algorithm.skip_depths=1", ALL]),
    # matching: no probability is needed
    "diffusion_nft": ("sd3", [TWO_TIMES, "algorithm.kl_coef=0.1", "rollout.solver=heun", "optimizer.schedule=cosine"]),
    "diffusion_nft slow": ("flux", [TWO_TIMES, "algorithm.old.decay=ema", "algorithm.old.ema=0.5",
        "algorithm.kl_coef=0.1", ALL, GUIDED, "algorithm.times=uniform"]),
    "diffusion_nft rising": ("sd3", [TWO_TIMES, "algorithm.old.decay=linear_to_0_5", "algorithm.old.counts=updates",
        "algorithm.train_guidance=rollout", GUIDED]),
    "diffusion_nft ramp": ("flux", ["algorithm.old.decay=linear", "algorithm.old.linear=[1, 0.2, 0.1, 0.9]",
        "algorithm.timestep_fraction=0.5"]),
    "diffusion_nft gardo": ("sd3", [WATCHED, TWO_TIMES, ALL, "algorithm.kl_coef=0.1",
        "algorithm.kl_gate={name: disagreement, against: [left]}",
        "algorithm.lagged={reference: {update_interval: 9, kl_limit: 1e-9}}",
        "algorithm.advantage={name: diverse_group, diversity: left}"]),
    "awm anchor": ("flux", [TWO_TIMES, "algorithm.old_kl_coef=0.1", "algorithm.sample_with=policy",
        "algorithm.anchor=average", "algorithm.lagged={average: {decay: linear, linear: [0, 0.2, 0.1, 0.9]}}"]),
    "awm t": ("flux", ["algorithm.weighting=t", TWO_TIMES, "algorithm.clip_high=0.01", ALL]),
    "awm t2": ("sd1.5",
        [TWO_TIMES, "algorithm.weighting=t2", "algorithm.times=logit_normal", "algorithm.time_stratified=true"]),
    "awm huber": ("flux", ["algorithm.weighting=huber", "algorithm.times=uniform", "algorithm.time_shift=2", LOW]),
    "awm kl": ("flux", [TWO_TIMES, "algorithm.weighting=ghuber", "algorithm.kl_coef=0.1", "algorithm.old_kl_coef=0.1",
        "algorithm.old.decay=ema", "algorithm.old.ema=0.5"]),
    "crd": ("flux", [TWO_TIMES, "algorithm.kl_coef=0.1", "algorithm.sample_with=old"]),
    "crd reference": ("sd3", [TWO_TIMES, "algorithm.matching=mse", "algorithm.temperature=0.5",
        "algorithm.baseline=reference", "algorithm.kl_coef=0.1", "algorithm.kl_adaptive=true",
        "algorithm.kl_guidance=2", "algorithm.adaptive_weighting=false", ALL]),
    "crd sampling": ("flux", [TWO_TIMES, "algorithm.sample_with=sampling", "algorithm.old.update_interval=2",
        "algorithm.lagged={sampling: {decay: ema, ema: 0.5}}"]),
    "dgpo": ("flux", [TWO_TIMES, "algorithm.kl_coef=0.1", "algorithm.times=logit_normal", "algorithm.clip=0.001"]),
    "dgpo old": ("flux", [TWO_TIMES, "algorithm.baseline=old", "algorithm.beta=2000", "algorithm.clip=0.001",
        "algorithm.clip_kl=true", "algorithm.kl_coef=0.1", "algorithm.reference_guidance=2", ALL]),
    "tdm_r1": ("sd3", ["algorithm.reward_steps=2", "model.gradient_checkpointing=true", *ONE_STEP]),
    "tdm_r1 all weights": ("flux", [ALL, "algorithm.advantage_std=group", "rollout.solver=dpm2m", *ONE_STEP]),
    # preferences, teachers, differentiable rewards, records
    "diffusion_dpo": ("flux", [TWO_TIMES, "algorithm.sft_coef=0.1", "algorithm.kind=ipo"]),
    "diffusion_dpo schedule": ("flux", ["algorithm.times=schedule", TWO_TIMES]),
    "diffusion_dpo pairs": ("flux", [*PAIRS, TWO_TIMES, "algorithm.label_smoothing=0.1", ALL]),
    "distill": ("sd3", ["algorithm.objective=distill_kl", "algorithm.transition=sde",
                        "algorithm.teachers=[{guidance_scale: 2}, {guidance_scale: 4}]"]),
    "distill ode": ("flux", ["algorithm.objective=distill_fm_mse", "algorithm.transition=ode", TEACHERS]),
    "draft": ("sd3", [*DIFFERENTIABLE, "algorithm.last_steps=2", "algorithm.recompute=true", *ONE_STEP]),
    "draft lv": ("flux", [*DIFFERENTIABLE, "algorithm.kind=draft_lv", "algorithm.last_steps=1",
        "algorithm.ceiling=0.5", ALL]),
    "draft lv level": ("flux", [*DIFFERENTIABLE, "algorithm.kind=draft_lv", "algorithm.last_steps=1",
        "algorithm.renoise_level=0.1"]),
    "draft refl": ("flux", [*DIFFERENTIABLE, "algorithm.kind=refl", "algorithm.last_steps=1", "algorithm.kl_coef=0.1"]),
    "srpo": ("sd3", [*DIFFERENTIABLE, "algorithm.ceiling=null", "algorithm.emphasis=[[0.5, 1], [0.2, 0]]", *ONE_STEP]),
    "sft": ("sd3", [*RECORDS, "algorithm.prompt_dropout=0.5", GUIDED]),
    "sft best": ("flux", ["algorithm.online=true", "algorithm.best=2", ALL]),
    # images with scores
    "diffusion_nft scored": ("flux", [*SCORED, TWO_TIMES]),
    "awm scored": ("sd3", [*SCORED, TWO_TIMES]),
    "sft scored": ("flux", [*SCORED, "algorithm.online=true", "algorithm.best=2", "algorithm.reward_temperature=0.5"]),
    # video, sound, images that are edited, and memory
    "sft video": ("wan2.2", ["data.train_files={files}/clips.jsonl", "trainer.mini_batch_size=1",
        "rollout.num_frames=5", ALL]),
    "flow_grpo video": ("wan2.2", [GUIDED, ALL, "algorithm.kl_coef=0.1", "rollout.num_frames=5"]),
    "flow_grpo sound": ("longcat-audio", [*NO_SIZE, "rollout.call={audio_duration_s: 0.1}"]),
    # frames and sound together
    "flow_grpo streams": ("ltx2", [GUIDED, *LTX2]),
    "diffusion_nft streams": ("ltx2", [TWO_TIMES, *LTX2]),
    "diffusion_nft omni": ("ltx2", [TWO_TIMES, *LTX2, "algorithm.advantage_aggregation=each", "algorithm.kl_coef=0.1",
        "rewards.loud.stream=audio", "rewards.brightness.stream=video"]),
    "flow_grpo written": ("ernie-image-rewritten", ["model.networks=[transformer, pe]", "algorithm.kl_coef=0.1"]),
    "diffusion_nft edit": ("instruct-pix2pix", [*NO_SIZE, TWO_TIMES, "data.train_files={files}/edits.jsonl"]),
    "flow_grpo quantised": ("sd3", ["model.quantization={weights: fp8_cast, text_encoders: fp8_cast}",
        "model.gradient_checkpointing=true"]),
}  # fmt: skip
# in make thorough alone: what each has is in the mathematics, and most of it in others
SELDOM = [
    "flow_grpo apart bypass", "flow_grpo best of", "flow_grpo bfloat16", "flow_grpo gdpo", "flow_grpo kl exact",
    "flow_grpo last", "flow_grpo shared", "mix_grpo faster", "grpo_guard kl", "flow_dppo means", "tempflow_grpo plain",
    "diffusion_nft edit", "diffusion_nft ramp", "awm huber", "awm t2", "crd sampling",
    "dgpo old", "tdm_r1 all weights", "diffusion_dpo schedule", "distill ode", "draft lv level", "draft refl",
    "sft best", "awm scored",
]  # fmt: skip
