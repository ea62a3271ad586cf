"""Golden runs of language models, with and without images: every algorithm, and every part that one can choose.

By name: the model, as ``burnish tiny`` knows it, and options. The first word of a name is the algorithm.
"""

CORRECTION = "algorithm.rollout_correction"
ALL = "model.lora=null"
LOW = "model.dtype=bfloat16"
ONE_STEP = ["trainer.mini_batch_size=null", "trainer.epochs=1"]
ONE_RECORD = "trainer.mini_batch_size=1"  # an update has one sample of each record
GIVEN = ["algorithm.online=false", "data.train_files={data}/preferences.jsonl", ONE_RECORD]
SCORED = ["data.scores={score: 1}", "data.train_files={data}/scores.jsonl", "rollout.n=2", "trainer.mini_batch_size=2"]
ADAPTIVE = "controller: adaptive, target: 0.1, horizon: 100"
GAME = [
    "environment.name=function", "environment.path=examples/grid_game.py:GridGame", "environment.max_turns=2",
    "rewards.environment.weight=1",
]  # fmt: skip
DRAWS = ["task=text-to-image-tokens", "rollout.max_new_tokens=16", "rewards.odd.path={files}/rewards.py:left"]
SELF_TEACHER = "algorithm.teachers=[{path: '{files}/qwen2'}]"

RUNS: dict[str, tuple[str, list[str]]] = {
    # policy gradients: every loss and advantage
    "grpo": ("qwen2_5_vl", []),
    "dapo": ("smolvlm", ["algorithm.overlong={buffer: 2}"]),
    "dr_grpo": ("llama", ["algorithm.loss_length=8"]),
    "rloo": ("qwen3_vl", [ALL]),
    "remax": ("qwen2", []),
    "reinforce": ("llama", ["algorithm.whiten_std=biased", "algorithm.gamma=0.9", ALL]),
    "reinforce_plus_plus": ("llama", [f"algorithm.kl={{route: reward, {ADAPTIVE}}}"]),
    "reinforce_plus_plus_baseline": ("qwen2_5_vl", [ALL, "algorithm.whiten=true"]),
    "gspo": ("llama", []),
    "gspo bypass": ("qwen2", [f"{CORRECTION}={{mode: bypass, weights: step}}"]),
    "gmpo": ("qwen2", [ALL]),
    "cispo": ("llama", [ALL]),
    "cispo decoupled": ("qwen2_vl", [f"{CORRECTION}={{reject: token_k2, reject_above: 3}}", "algorithm.clip=0.1"]),
    "sapo": ("qwen3_vl", []),
    "cpgd": ("llama", []),
    "cpgd filtered": ("qwen2", ["algorithm.weighting=clip_filter", ALL]),
    "gdpo": ("llama", ["rewards.even={name: function, path: '{files}/rewards.py:even', weight: 0.5}"]),
    "opo": ("qwen3_moe", [ALL]),
    "pass_at_k": ("llama", ["algorithm.pass_k=2", "algorithm.pass_reward=0.5"]),
    "dppo": ("llama", ["algorithm.divergence=kl"]),
    "drpo": ("llama", []),
    "clip_cov": ("llama", ["algorithm.cov_low=-5", "algorithm.cov_fraction=0.1"]),
    "kl_cov": ("qwen2", ["algorithm.cov_fraction=0.1", ALL]),
    # layouts of a batch, old log-probs, kinds of model
    "grpo one step": ("llama", ONE_STEP),
    "grpo recomputed": ("qwen2_5_vl", ["algorithm.old_logprob=recompute", "trainer.layout=padded", ALL]),
    "grpo sampler": ("qwen2", ["algorithm.old_logprob=sampler", "trainer.layout=packed"]),
    "grpo shared prompts": ("qwen2", ["trainer.layout=shared", "ema.decay=0.5", "optimizer.warmup_steps=2"]),
    "grpo experts": ("qwen3_moe", ["optimizer.schedule=cosine"]),
    "grpo sliding windows": ("gemma3", [ALL]),
    "grpo recurrent": ("qwen3_5", []),
    "grpo tiles": ("internvl", ["algorithm.kl.coef=0.1"]),
    "grpo state spaces": ("mamba2", [ALL]),
    "grpo bfloat16": ("qwen2_5_vl", [LOW, "model.gradient_checkpointing=true", ALL]),
    "grpo dora": ("qwen2_5_vl",
        ["model.lora={rank: 2, dora: true, rslora: true, modules_to_save: [lm_head, layers.0.mlp], exclude: [v_proj]}",
        "algorithm.kl={coef: 0.1, refresh_every: 1}"]),
    "grpo frozen": ("qwen3_vl", [ALL, "model.freeze=[model.visual]", "algorithm.kl={kind: k1+, coef: 0.1}"]),
    "grpo quantised": ("qwen2_5_vl", ["model.quantization.weights=fp8_cast"]),
    # the distance from the reference
    "grpo kl": ("llama", [ALL, "algorithm.kl={coef: 0.1, kind: unbiased}"]),
    "grpo kl in the reward": ("qwen2", ["algorithm.kl={route: reward, coef: 0.1}", "trainer.layout=padded"]),
    "grpo kl adaptive loss": ("qwen2", [f"algorithm.kl={{kind: k2, {ADAPTIVE}}}"]),
    "grpo kl of one step": ("llama", [*ONE_STEP, "algorithm.kl.coef=0.1"]),
    "grpo kl k3+": ("llama", ["algorithm.kl={kind: k3+, coef: 0.1}", "algorithm.loss_agg_mode=token-mean"]),
    "grpo kl gated": ("llama", ["algorithm.kl={coef: 0.1}",
        "algorithm.kl_gate={name: disagreement, against: [even], share: 0.5}",
        "rewards.even={name: function, path: '{files}/rewards.py:even', weight: 0}"]),
    # shaping, filters of sampling, more data
    "grpo shaped": ("llama", ["algorithm.reward_norm=true", "algorithm.reward_clip=1", "algorithm.overlong={buffer: 2}",
        "algorithm.mask_truncated=false", "algorithm.advantage_clip=1", "algorithm.entropy_coef=0.01",
        "algorithm.loss_agg_mode=seq-mean-token-sum"]),
    "grpo entropy": ("qwen2",
        ["algorithm.high_entropy_fraction=0.5", "algorithm.high_entropy_count=selected", "algorithm.dual_clip=3"]),
    "grpo filters": ("llama", ["rollout.top_k=50", "rollout.top_p=0.9", "rollout.min_p=0.01",
        "rollout.repetition_penalty=1.1", "rollout.min_new_tokens=2", "rollout.fire_temperature=2", "rollout.stop=[zz]",
        "rollout.temperature=0.9", "rollout.batch_size=3", "rollout.filter_groups.max_num_gen_batches=2"]),
    "grpo replay": ("llama", ["rollout.filter_groups.replay_buffer=4",
        "rewards.odd={name: function, path: '{files}/rewards.py:same'}"]),
    "grpo image tokens": ("janus", DRAWS),
    "ppo image tokens": ("janus", [*DRAWS, ALL]),
    "grpo ptx": ("llama", ["supervised={train_files: '{data}/responses.jsonl', batch_size: 2}", ALL]),
    "chord": ("llama", ["supervised={train_files: '{data}/responses.jsonl', batch_size: 2, coef: 0.5}",
        "algorithm.mu_decay=2"]),
    "grpo rollouts": ("llama", ["trainer.rollouts_per_update=2", "algorithm.advantage_std=global"]),
    # corrections of what another policy sampled
    "grpo decoupled": ("llama", [f"{CORRECTION}={{weights: step, batch_normalise: true}}"]),
    "grpo bypass": ("qwen2", [f"{CORRECTION}={{mode: bypass, weights: sample, lower: 0.5}}"]),
    "grpo apart": ("llama", [LOW, f"{CORRECTION}={{reject: [token_k1, seq_max_k2], reject_above: [1.0001, 1.0e-7]}}"]),
    "grpo apart bypass": ("qwen2", [LOW, f"{CORRECTION}={{mode: bypass, upper: 1.0001}}"]),
    # critics and dialogues
    "ppo": ("qwen2_5_vl", ["critic.warmup_updates=0"]),
    "ppo warm": ("llama", [ALL, "critic.warmup_updates=1", "algorithm.kl={route: reward}"]),
    "ppo shared": ("llama", ["critic.trunk=shared", "critic.warmup_updates=0", "critic.detach=false",
        "algorithm.lam=0.9", "algorithm.gamma=0.9"]),
    "ppo decoupled": ("qwen3_5", ["critic.warmup_updates=0", "critic.trunk=shared", "algorithm.value_clip=null", ALL,
        f"{CORRECTION}={{reject: token_k2, reject_above: 3}}"]),
    "ppo game": ("qwen3_vl", [*GAME, "algorithm.turn_rewards=true", "critic.warmup_updates=0"]),
    "grpo game": ("qwen2_5_vl", [*GAME, ALL]),
    "grpo game rewritten": ("qwen2_5_vl", [*GAME, "environment.history=template"]),
    "reinforce game": ("smolvlm", [*GAME, "algorithm.turn_rewards=true", "algorithm.whiten=false"]),
    # teachers, preferences, records
    "distill": ("qwen2", [SELF_TEACHER, "algorithm.reward_coef=0.5"]),
    "distill top_k": ("qwen2", [SELF_TEACHER, "algorithm.over=top_k", "algorithm.top_k=4", "algorithm.divergence=jsd"]),
    "distill sampled": ("llama", ["algorithm.teachers=[{weights: initial}]", "algorithm.over=sampled",
        "algorithm.reward_coef=1"]),
    "sdpo": ("llama", ["algorithm.teachers=[{weights: initial, update_rate: 0.5, solution: 0.5, feedback: true}]"]),
    "gold": ("llama", ["algorithm.teachers=[{path: '{files}/qwen2', shared_weight: 0.6}]"]),
    "dpo": ("llama", ["algorithm.rpo_alpha=0.1", "algorithm.label_smoothing=0.1"]),
    "dpo given": ("qwen2_5_vl", [*GIVEN, ALL]),
    "ipo": ("llama", [ALL, "algorithm.average_log_prob=true"]),
    "ipo given": ("qwen2", [*GIVEN, "algorithm.reference_free=true"]),
    "simpo": ("llama", []),
    "orpo": ("qwen2", []),
    "mpo": ("qwen2", [ALL]),
    "mpo given": ("qwen2_vl", GIVEN),
    "kto": ("llama", ["algorithm.desirable_weight=2", "algorithm.reference_point=opposite"]),
    "kto weighted": ("qwen2", ["algorithm.reference_point=zero", "algorithm.threshold=0.5", ALL]),
    "kto given": ("llama", ["algorithm.online=false", ONE_RECORD, "data.train_files={data}/judged.jsonl",
        "trainer.micro_batch_tokens=40"]),
    "sft": ("smolvlm", ["data.train_files={data}/responses.jsonl", ONE_RECORD, ALL]),
    "sft best": ("llama", ["algorithm.online=true", "algorithm.best=2"]),
    # responses with scores
    "grpo scored": ("qwen2_5_vl", [*SCORED, "algorithm.given_logprobs=reference"]),
    "sft scored": ("llama", [*SCORED, "algorithm.online=true", "algorithm.best=2", "algorithm.reward_temperature=0.5"]),
}  # fmt: skip

REWARD_MODELS: dict[str, tuple[str, list[str]]] = {
    "bradley_terry": ("qwen2_5_vl", ["data.train_files={data}/preferences.jsonl", "algorithm.center_coef=0.1"]),
    "bradley_terry ties": ("llama",
        ["data.train_files={data}/preferences.jsonl", "algorithm.ties=davidson", "algorithm.heads=[a]", ALL]),
    "score_regression": ("smolvlm", ["data.train_files={data}/scores.jsonl", ALL]),
    "process_reward": ("qwen2_5_vl", ["data.train_files={data}/steps.jsonl"]),
}  # fmt: skip
SELDOM = [  # in make thorough alone
    "gspo bypass", "cispo decoupled", "cpgd filtered", "grpo apart bypass", "grpo bfloat16", "grpo frozen",
    "grpo kl k3+", "grpo kl of one step", "grpo quantised", "grpo sliding windows", "grpo state spaces", "grpo tiles",
    "ppo decoupled", "reinforce game", "distill sampled", "dpo given", "ipo given", "mpo given", "kto weighted",
    "sft best", "ppo image tokens",
]  # fmt: skip
