"""Forecasts beside counted runs: what a run on fake tensors holds is what one on real ones holds."""

import weakref
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.forecasts import peaks
from burnish.plan.counter import LiveBytes
from tests.plan.plans import larger, plan
from tests.support.optional import seldom
from tests.support.rank_runs import together
from tests.support.tiny_run import TinyRun

NEAR = 0.1  # a forecast's relative error
thorough = pytest.mark.thorough
FULL, BF16, LORA = ["model.lora=null"], ["model.dtype=bfloat16"], ["model.lora={rank: 8}"]
WIDE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "vocab_size": 4096}  # fmt: skip

GENERATORS = yaml.safe_load(Path(__file__).with_name("counted.yaml").read_text())
SMALL = GENERATORS.pop("small")


class Held(TorchDispatchMode):
    """The most bytes at once of tensors that operations returned; what is read from files is none of them."""

    def __init__(self):
        super().__init__()
        self.now, self.most, self.known = 0, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor):
                self.see(one.untyped_storage())
        return found

    def see(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return

        def freed(_):
            del self.known[key]
            self.now -= size

        self.known[key] = weakref.ref(storage, freed)
        self.now += size
        self.most = max(self.most, self.now)


def answering(files, *options):
    run = larger(files, "wide", "qwen2", **WIDE | {"hidden_size": 512, "vocab_size": 8192})
    if not list((files / "wide").glob("*.safetensors")):
        network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(files / "wide"))
        network.save_pretrained(files / "wide")
    length = ["rollout.max_new_tokens=32", "rollout.min_new_tokens=32", "rollout.n=16", "rollout.batch_size=8"]
    run.options += [*length, "trainer.micro_batch_tokens=4096", *options]
    return run


def drawing(files, *options):
    size = ["rollout.height=128", "rollout.width=128", "data.train_batch_size=2", "trainer.micro_batch_size=24"]
    once = ["trainer.epochs=1", "trainer.mini_batch_size=null", "validation.every=null", "validation.before=false"]
    return TinyRun(files, "generators", "sd3", "algorithm=flow_grpo", *size, *once, *options, name="counted")


@pytest.mark.parametrize(("run", "options"), [(drawing, FULL), *seldom((answering, FULL), (answering, [*FULL, *BF16]))])
def test_a_plan_tells_what_a_run_holds(run, options, files):
    run, held = run(files, *options, "steps=2"), Held()
    with held:
        run.train()
    assert held.most / 2**30 == pytest.approx(plan(run.recipe, *run.options).peak, rel=NEAR, abs=0.01)


# Phase by phase

PPO = ["algorithm.kl={route: loss, kind: k3, coef: 0.01}", "critic.optimizer.lr=1e-5"]
SEEING = {"intermediate_size": 2048, "num_hidden_layers": 8, "vocab_size": 4096}
MODELS = {
    "ppo": ("qwen2", WIDE, [*PPO, *FULL]), "ppo, adapters": ("qwen2", WIDE, [*PPO, *LORA, *BF16]),
    "pictures": ("qwen2_5_vl", SEEING, [*FULL, "data.train_files={files}/seen/prompts.jsonl"]),
    "a class with a cache of its own": ("gemma3", WIDE, FULL),
}  # fmt: skip
RANKS = {"all weights": [*FULL, "algorithm.kl_coef=0.1"], "adapters": BF16}


def near(real, fake):
    """Every phase is, but for loading: on a CPU mapped files count, which take no memory of a GPU."""
    assert fake.keys() == real.keys()
    for name in real.keys() - {"load"}:
        assert fake[name].total == pytest.approx(real[name].total, rel=NEAR), name


@thorough
@pytest.mark.parametrize("name", GENERATORS)
def test_every_phase_of_a_generator(name):
    own = {option.partition("=")[0]: option for option in [*SMALL, *GENERATORS[name]]}
    options = list(own.values())
    near(*(peaks("quickstart", options, fake=fake) for fake in (False, True)))


@pytest.mark.parametrize("name", ["ppo", *seldom(*(name for name in MODELS if name != "ppo"))])
def test_every_phase_of_a_language_model(name, files):
    family, sizes, options = MODELS[name]
    run = larger(files, f"wide-{family}", family, "ppo" if PPO[0] in options else "grpo", **sizes)
    length = ["rollout.max_new_tokens=16", "rollout.min_new_tokens=16"]
    sized = [*length, "trainer.micro_batch_tokens=512", "data.max_prompt_length=200"]
    options = [option.format(files=files) if "{files}" in option else option for option in options]
    given = [*run.options, *sized, "rollout.batch_size=4", *options]
    near(*(peaks(str(run.recipe), given, fake=fake, drawn=True) for fake in (False, True)))


def on_rank(options, ranks, folder):
    return peaks("quickstart", options, fake=False, ranks=ranks)


@thorough
@pytest.mark.cluster
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", RANKS)
def test_every_phase_of_ranks(name, size, tmp_path):
    from burnish.plan.fakes import pretend_ranks

    options = [*SMALL, *RANKS[name], "runtime=ray", f"pools.train.processes={size}"]
    real = together(partial(on_rank, options), tmp_path, size=size)[0]
    with pretend_ranks(size) as ranks:
        fake = peaks("quickstart", options, fake=True, ranks=ranks)
    near(real, fake)


class Joint(torch.nn.Module):
    """A block of two streams, whose outputs share memory, as those of FLUX do."""

    def __init__(self, width=64):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(width), torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, image, text):
        states = torch.cat([text, image], 1)
        states = states + self.down(torch.nn.functional.gelu(self.up(self.norm(states))))
        return states[:, text.shape[1] :], states[:, : text.shape[1]]


@pytest.mark.parametrize("recomputed", ["nothing", "each", "all"])
def test_blocks_that_are_repeated_cost_what_they_would_cost_by_themselves(recomputed):
    from burnish.plan.fakes import Pretending
    from burnish.plan.repeats import repeat_blocks

    found = []
    for repeats in (False, True):
        counter = LiveBytes()
        with Pretending().active(counter):
            blocks = torch.nn.ModuleList(Joint() for _ in range(6))
            if repeats:
                repeat_blocks(blocks, counter, recomputed=recomputed == "each")

            def run(*streams, blocks=blocks):
                for block in blocks:
                    each = partial(checkpoint, block, use_reentrant=False) if recomputed == "each" else block
                    streams = each(*streams)
                return streams

            for _ in range(2):
                streams = torch.randn(2, 1024, 64), torch.randn(2, 512, 64)
                with counter.phase("forward"):
                    every = partial(checkpoint, run, use_reentrant=False) if recomputed == "all" else run
                    streams = every(*streams)
                    loss = streams[0].square().mean()
                with counter.phase("backward"):
                    loss.backward()
                del streams, loss
        found.append({name: peak.total for name, peak in counter.peaks.items()} | {"left": counter.live})
    assert found[1].pop("backward") == pytest.approx(found[0].pop("backward"), rel=0.03)  # outputs' gradients wait
    assert found[1] == pytest.approx(found[0], abs=4096)  # single numbers


def test_what_is_chosen_by_unknown_values_is_as_much_as_there_could_be():
    from burnish.plan.fakes import Pretending

    with Pretending().active(LiveBytes()), torch.no_grad():
        rows = torch.nn.Linear(3, 5)(torch.randn(7, 3))
        assert rows[rows > 0].shape == (35,)
        experts = torch.nn.Parameter(torch.empty(4, 5, 6))
        assert torch._grouped_mm(rows, experts, offs=rows.argmax(0)[:4].int()).shape == (7, 6)
