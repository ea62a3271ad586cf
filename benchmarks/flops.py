"""How much of the machine's arithmetic a Stable Diffusion 3 of 50 M parameters gets, in rollout and update.

FLOPs are counted by PyTorch from the shapes of what really runs; the peak is the best fp32 matrix product of
this run, on the same single thread.

    python -m benchmarks.flops --output flops.json
"""

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.setting import Burnish, cpu_seconds, median, options, sd3, table, write
from burnish.diffusion.algorithms.policy_gradient import FlowGRPO, Window
from burnish.options.model import LoraOptions

SIZE = {"layers": 7, "heads": 7, "head_width": 64}  # 50 M parameters
TEXT = 205


def peak(rounds: int) -> float:
    """FLOP/s of the fastest fp32 matrix product among a few shapes."""
    best = 0.0
    for side in (512, 1024, 2048):
        a, b = torch.randn(side, side), torch.randn(side, side)
        for _ in range(rounds):
            seconds, _ = cpu_seconds(lambda a=a, b=b: a @ b)
            best = max(best, 2 * side**3 / seconds)
    return best


def measure(batch: int, steps: int, rounds: int, size: dict[str, int]) -> list[dict]:
    """FLOP/s of rollout and update, with LoRA and with all weights trained."""
    window = Window(kind="fixed", size=min(2, steps - 1))
    rows = []
    for what, lora in (("LoRA", LoraOptions(rank=32)), ("full", None)):
        network = sd3(**size)
        parameters = sum(p.numel() for p in network.parameters())
        run = Burnish(
            network,
            FlowGRPO(window=window),
            text_tokens=TEXT,
            guidance=1.0,
            steps=steps,
            rollout_batch=batch,
            micro_batch=batch,
            lora=lora,
        )
        for phase, (flops, seconds) in phases(run, batch, rounds).items():
            rows.append({"name": f"{phase}, {what}", "parameters": parameters, "gflop": flops / 1e9})
            rows[-1] |= {"seconds": seconds, "gflops": flops / seconds / 1e9}
    return rows


def phases(run: Burnish, batch: int, rounds: int) -> dict[str, tuple[int, float]]:
    """FLOPs and CPU-seconds of a rollout and of an update."""
    with FlopCounterMode(display=False) as sampling:
        scored = run.rollout(1, batch, 1)
    with FlopCounterMode(display=False) as learning:
        run.update(scored)
    timed = []
    for turn in range(rounds):
        sampled, scored = cpu_seconds(lambda turn=turn: run.rollout(1, batch, turn + 2))
        learned, _ = cpu_seconds(lambda scored=scored: run.update(scored))
        timed.append((sampled, learned))
    return {
        "rollout": (sampling.get_total_flops(), median([t for t, _ in timed])),
        "update": (learning.get_total_flops(), median([t for _, t in timed])),
    }


def main() -> None:
    arguments = options(__doc__.splitlines()[0])
    if arguments.smoke:
        rows, machine = measure(1, 2, 1, {"layers": 2, "heads": 2, "head_width": 32}), peak(1)
    else:
        before = peak(5)
        rows = measure(batch=8, steps=4, rounds=3, size=SIZE)
        machine = max(before, peak(5))
    for row in rows:
        row["share"] = f"{100 * row['gflops'] * 1e9 / machine:.0f} %"
    print(f"{rows[0]['parameters'] / 1e6:.0f} M parameters; ", end="")
    print(f"matrix products reach {machine / 1e9:.0f} GFLOP/s on this thread\n")
    columns = {"name": "", "gflop": "GFLOP", "seconds": "CPU-s", "gflops": "GFLOP/s", "share": "of peak"}
    print(table(rows, columns))
    write(arguments.output, {"peak": machine, "rows": rows})


if __name__ == "__main__":
    main()
