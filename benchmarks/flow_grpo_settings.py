"""Images per CPU-second of Flow-GRPO: a plain loop, Burnish on equal work, and what each saving brings.

The plain loop is what flow_grpo's training script comes down to: unmerged adapters, eight images a
forward, one denoising step at a time. All take turns, so that a noisy machine disturbs them alike.

    python -m benchmarks.flow_grpo_settings --output settings.json
"""

import copy
import math
from dataclasses import dataclass

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from diffusers.models.attention_processor import JointAttnProcessor2_0
from torch import Tensor

from benchmarks.setting import JOINT, POOLED, Burnish, cpu_seconds, median, options, sd3, table, write
from burnish.diffusion.algorithms.policy_gradient import FlowGRPO, Window
from burnish.models.lora import add_adapters
from burnish.options.model import LoraOptions

PUBLISHED = {"rollout": (38, 40), "update": (22, 23)}  # flow_grpo at this setting, on a machine like ours
SIZE = {"layers": 1, "heads": 3, "head_width": 48}  # the plain loop then runs as fast as flow_grpo did
LORA = LoraOptions(rank=32, targets=["attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0",
                                     "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"])  # fmt: skip
GROUP, BATCH, STEPS, TEXT, GUIDANCE = 8, 8, 10, 205, 4.5


class PlainLoop:
    """Flow-GRPO with nothing between the reader and diffusers: rollout of a batch, update of a batch."""

    def __init__(self, network: SD3Transformer2DModel) -> None:
        add_adapters(network, LORA, ["policy"], seed=0)
        self.network = network
        scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
        scheduler.set_timesteps(STEPS)
        self.times = scheduler.sigmas
        self.trained = [p for p in network.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-5)

    def predict(self, x: Tensor, t: Tensor, tokens: Tensor, pooled: Tensor) -> Tensor:
        velocity = self.network(
            hidden_states=torch.cat([x, x]), timestep=t.expand(2 * len(x)) * 1000,
            encoder_hidden_states=tokens, pooled_projections=pooled, return_dict=False,
        )[0]  # fmt: skip
        negative, positive = velocity.chunk(2)
        return negative + GUIDANCE * (positive - negative)

    def step(self, x: Tensor, i: int, tokens: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
        t, dt = self.times[i], self.times[i + 1] - self.times[i]
        v = self.predict(x, t, tokens, pooled)
        std = 0.7 * (t / (1 - (self.times[1] if t == 1 else t))).sqrt()
        mean = x * (1 + std**2 / (2 * t) * dt) + v * (1 + std**2 * (1 - t) / (2 * t)) * dt
        return mean, std * (-dt).sqrt()

    @staticmethod
    def log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        error = -((x - mean) ** 2) / (2 * std**2) - std.log() - math.log(math.sqrt(2 * math.pi))
        return error.mean(dim=(1, 2, 3))

    def rollout(self, prompts: int) -> list[tuple]:
        batches = []
        for _ in range(prompts * GROUP // BATCH):
            tokens, pooled = torch.randn(2 * BATCH, TEXT, JOINT), torch.randn(2 * BATCH, POOLED)
            x, states, logs = torch.randn(BATCH, 16, 8, 8), [], []
            with torch.no_grad():
                for i in range(STEPS):
                    mean, std = self.step(x, i, tokens, pooled)
                    landed = mean + std * torch.randn_like(x)
                    states.append((x, landed))
                    logs.append(self.log_prob(landed, mean, std))
                    x = landed
            batches.append((states, logs, tokens, pooled, torch.randn(BATCH)))
        return batches

    def update(self, batches: list[tuple]) -> None:
        """All but the last step of every batch, one at a time; one optimizer step."""
        count = len(batches) * (STEPS - 1)
        for states, logs, tokens, pooled, advantage in batches:
            for i in range(STEPS - 1):
                mean, std = self.step(states[i][0], i, tokens, pooled)
                ratio = (self.log_prob(states[i][1], mean, std) - logs[i]).exp()
                loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - 1e-4, 1 + 1e-4)).mean()
                (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


@dataclass(frozen=True)
class Setting:
    """One line of the table, as options of Burnish."""

    name: str
    window: Window | None = None
    shared_noise: bool = False
    text: int = TEXT
    guidance: float = GUIDANCE
    merge: bool = True
    rollout_batch: int = 16
    micro_batch: int = 16
    shorter: bool = True  # leave out the last block's unread text queries

    def build(self, network: SD3Transformer2DModel) -> Burnish:
        algorithm = FlowGRPO(window=self.window or Window(), shared_noise=self.shared_noise)
        built = Burnish(
            copy.deepcopy(network),
            algorithm,
            text_tokens=self.text,
            guidance=self.guidance,
            merge=self.merge,
            rollout_batch=self.rollout_batch,
            micro_batch=self.micro_batch,
            steps=STEPS,
            lora=LORA,
        )
        if not self.shorter:
            built.roles.model.network.transformer_blocks[-1].attn.set_processor(JointAttnProcessor2_0())
        return built


BARE = {"merge": False, "rollout_batch": BATCH, "micro_batch": BATCH, "shorter": False}
THREE = Window(kind="fixed", size=3)
LATE = Window(kind="fixed", size=3, start=3)
SETTINGS = [
    Setting("Burnish, every saving off", **BARE),
    Setting("  + adapters merged in rollout", **BARE | {"merge": True}),
    Setting(
        "  + larger batches",
        **BARE | {"rollout_batch": 16, "micro_batch": 16},
    ),
    Setting("  + unread text left out", **BARE | {"shorter": True}),
    Setting("Burnish, equal work"),
    Setting("  + prompts trimmed to 109 tokens", text=109),
    Setting("  + 3 trained steps", window=THREE),
    Setting("  + 3 trained steps, shared prefix of 4", window=LATE, shared_noise=True),
    Setting("  + guidance off", guidance=1.0),
    Setting("Burnish, all together", window=LATE, shared_noise=True, guidance=1.0, text=109),
]


def measure(prompts: int, rounds: int, layers: int) -> list[dict]:
    """Images per CPU-second of everything, in turns."""
    network = sd3(**SIZE | {"layers": layers})
    plain = PlainLoop(copy.deepcopy(network))
    runs = [("plain loop", plain, lambda run, _: run.rollout(prompts))]
    runs += [(s.name, s.build(network), lambda run, update: run.rollout(prompts, GROUP, update)) for s in SETTINGS]
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in runs}
    for turn in range(rounds + 1):
        for name, run, rollout in runs:
            sampling, samples = cpu_seconds(lambda run=run, rollout=rollout: rollout(run, turn + 1))  # noqa: B023
            learning, _ = cpu_seconds(lambda run=run, samples=samples: run.update(samples))
            if turn:  # the first turn warms up
                seconds[name].append((sampling, learning))
    images, rows = prompts * GROUP, []
    for name, timed in seconds.items():
        base = seconds["plain loop"]
        pairs = list(zip(timed, base, strict=True))
        rows.append({
            "name": name,
            "rollout": images / median([r for r, _ in timed]),
            "update": images / median([u for _, u in timed]),
            "end_to_end": images / median([r + u for r, u in timed]),
            "rollout_gain": median([b[0] / t[0] for t, b in pairs]),
            "update_gain": median([b[1] / t[1] for t, b in pairs]),
            "end_to_end_gain": median([sum(b) / sum(t) for t, b in pairs]),
        })  # fmt: skip
    return rows


def main() -> None:
    layers = {"type": int, "default": SIZE["layers"], "help": "blocks of the model (%(default)s)"}
    arguments = options(__doc__.splitlines()[0], layers=layers)
    size = {"prompts": 1, "rounds": 1} if arguments.smoke else {"prompts": 4, "rounds": 7}
    rows = measure(**size, layers=arguments.layers)
    published = {"name": "flow_grpo itself (published)"}
    published |= {name: "{}-{}".format(*span) for name, span in PUBLISHED.items()}
    columns = {
        "name": "images per CPU-second",
        "rollout": "rollout",
        "rollout_gain": "x plain",
        "update": "update",
        "update_gain": "x plain",
        "end_to_end": "both",
        "end_to_end_gain": "x plain",
    }
    print(table([published, *rows], columns))
    by_name = {row["name"]: row for row in rows}
    equal, together = by_name["Burnish, equal work"], by_name["Burnish, all together"]
    print(f"\nequal work: {equal['rollout_gain']:.2f}x in rollout (target 1.2), ", end="")
    print(f"{equal['update_gain']:.2f}x in update (target 1.1)")
    print(f"all together, end to end: {together['end_to_end_gain']:.2f}x (target 2)")
    write(arguments.output, {"setting": SIZE | {"layers": arguments.layers}, "published": PUBLISHED, "rows": rows})


if __name__ == "__main__":
    main()
