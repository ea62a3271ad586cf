"""What fits into a GPU: batches, advice, networks of rewards, vLLM, and the sizes of published models."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

from burnish.config import load
from burnish.config.batches import smallest, unsettled, with_sizes, written
from burnish.config.hardware import in_bytes
from burnish.forecast import advice, batches
from burnish.forecast import forecast as forecasts
from burnish.forecast.advice import Remedy, remedies
from burnish.forecast.batches import choose
from burnish.forecast.brief import BACKWARD, UPDATE
from burnish.forecast.counter import REWARDS, Peak
from burnish.forecast.forecast import FRAGMENTS, OVERHEAD, Forecast, PoolForecast, forecast, needed, sharing, shown
from burnish.forecast.phases import SAMPLE, SCORE
from burnish.forecast.published import published
from burnish.forecast.scorers import CONTEXT, scorers_of
from burnish.forecast.vllm import BATCHED, GRAPHS, vllm_forecast
from burnish.utils.hub import PIPELINE
from burnish.utils.json_text import read_object
from tests.support.tiny_run import burnish

MIB, GIB = 1 << 20, 1 << 30


def test_sizes_of_memory_are_read():
    for text, size in (("80GB", 80e9), ("24GiB", 24 * GIB), ("1.5 TB", 1.5e12), ("512mib", 512 * MIB)):
        assert in_bytes(text) == size
    for text in ("", "80", "GB", "-1GB", "0GB", "1e9GB", "80GB;", "9" * 30 + "GB", "8.GB"):
        with pytest.raises(ValueError, match="memory=80GB"):
            in_bytes(text)
    assert (shown(3 << 29), shown(3 << 20)) == ("1.5 GiB", "3 MiB")


def of(total, phase=UPDATE):
    return Forecast((PoolForecast("train", 1, {phase: Peak(total), "load": Peak(1)}, 0),))


class Options(tuple):
    """Stands in for the configuration that they make."""

    def batch_sizes(self):
        return {}


def test_remedies_are_tried_in_their_order_until_the_run_fits(monkeypatch):
    assert of(1000 * MIB).needs == needed(1000 * MIB) == int(1000 * MIB * (1 + FRAGMENTS)) + OVERHEAD
    sizes = {(): 40, ("a=1",): 40, ("b=1",): 30, ("b=1", "e=1"): 10}
    monkeypatch.setattr(advice, "forecast", lambda options: of(sizes[options] * GIB))

    def read(options):
        if "d=1" in options:
            raise ValueError("there is no d")
        return Options(options)

    more = [
        Remedy("a=1", "nothing is gained", (UPDATE,)), Remedy("b=1", "some is"),
        Remedy("c=1", "helps another phase", (SAMPLE,)), Remedy("r=1", "needs ranks", ranks=True),
        Remedy("e=1", "enough is"), Remedy("f=1", "is not needed any more"),
    ]  # fmt: skip
    tried = list(remedies(read, of(40 * GIB), 20 * GIB, more=more))
    assert [one.options for one in tried] == [("a=1",), ("b=1",), ("b=1", "e=1")]
    assert tried[-1].needs <= 20 * GIB


@pytest.fixture
def chosen(monkeypatch):
    """The batches for what a run needs: bytes by rows of an update, and by images that are sampled at once."""

    def choice(rows, images, memory, *options):
        def foretold(config):
            update, sampled = Peak(rows(config.trainer.micro_batch_size)), Peak(images(config.rollout.batch_size))
            return Forecast((PoolForecast("train", 1, {"load": Peak(MIB), SAMPLE: sampled, BACKWARD: update}, 0),))

        monkeypatch.setattr(batches, "forecast", foretold)
        config = load("quickstart", ["rollout.batch_size=auto", *options])
        found = choose(config, foretold(with_sizes(config, smallest(config))), memory)
        assert foretold(load("quickstart", written(found.sizes))).needs == found.forecast.needs or options
        return found

    return choice


def test_the_largest_batches_that_fit_are_taken_and_groups_that_are_compared_stay_together(chosen):
    needs = (lambda rows: (1000 + 500 * rows) * MIB, lambda images: (1000 + 10 * images) * MIB)
    rows, images = "trainer.micro_batch_size", "rollout.batch_size"
    for memory, sizes in ((10_000 * MIB, (12, 96)), (1000 * MIB, (1, 1)), (10**12, (96, 96))):
        found = chosen(*needs, memory)
        assert found.sizes == dict(zip((rows, images), sizes, strict=True))  # of 10,000 MiB, 7,000 of about 8,060
        assert found.forecast.fits(memory) == (memory > 1000 * MIB)
    groups = ["algorithm=dgpo", "rollout.n=24"]
    for memory, size in ((30_000 * MIB, 48), (1000 * MIB, 24)):
        assert chosen(lambda rows: 500 * rows * MIB, lambda images: MIB, memory, *groups).sizes[rows] == size
    config = load("vlm_quickstart", ["rollout.batch_size=7"])
    assert list(unsettled(config)) == ["trainer.micro_batch_tokens"]
    settled = with_sizes(config, {"trainer.micro_batch_tokens": 512})
    assert not unsettled(settled)
    assert (settled.trainer.micro_batch_tokens, settled.rollout.batch_size) == (512, 7), "what is given is not chosen"


DETECTOR, CLIP = 68.7e6, 427.6e6  # weights of GenEval's two networks
ALL_OF_IT = int((DETECTOR + CLIP) * 4) + CONTEXT
GENEVAL = "rewards.geneval={name: geneval_mask2former, device: cuda}"
RAY = ["runtime=ray", "pools.rollout.processes=1"]
POOL = [*RAY, "pools.reward.processes=2"]
UNJUDGED = [*RAY, "validation.every=null", "validation.before=false"]


def test_networks_of_rewards_count_where_they_score(tmp_path, monkeypatch):
    found = scorers_of(load("quickstart", [GENEVAL]), samples=True, trains=True)
    assert (found.always, found.unknown) == (ALL_OF_IT, ())
    for options, trains, there in (
        (RAY, True, True),  # it evaluates
        (UNJUDGED, True, True),  # rewards are tried at the start
        ([*UNJUDGED, "scoring.probe=false"], True, False), (RAY, False, False), (POOL, True, False),
    ):  # fmt: skip
        found = scorers_of(load("quickstart", [GENEVAL, *options]), samples=False, trains=trains)
        assert (found.always > 0) == there, options
    (tmp_path / "own.yaml").write_text(
        "prompts: burnish:quickstart/heldout.jsonl\nscorers: {a: {name: geneval_mask2former, device: cuda}, "
        "b: {name: pickscore, device: cuda, put_away: true, path: who/knows}}\n"
    )
    config = load("quickstart", [*POOL, f"validation.suites=[{tmp_path / 'own.yaml'}]"])
    found = scorers_of(config, samples=False, trains=True)
    assert (found.always, found.unknown) == (ALL_OF_IT, ("suite own: scorers.b",)), "suites have their own"
    assert scorers_of(config, samples=True, trains=False).always == 0
    monkeypatch.setattr(forecasts, "_pool", lambda config, name, size, samples: PoolForecast(name, size, {}, 0))
    unknown = "rewards.other={name: pickscore, device: cuda, path: who/knows}"
    found = forecast(load("quickstart", [*POOL, GENEVAL, unknown, "pools.reward.gpus=0.5", "checkpoint.export=lora"]))
    judges = found.pools[-1]
    assert (judges.name, judges.processes, judges.sharing) == ("reward", 2, 2)
    assert judges.phases[SCORE].parts == {REWARDS: ALL_OF_IT}
    assert [name in said for name, said in zip(("rewards.other", "checkpoint.export"), found.left_out, strict=True)]


@pytest.mark.parametrize(
    ("gpus", "processes", "together"), [(None, 4, 1), (0.5, 4, 2), (0.3, 4, 3), (0.25, 2, 2), (0, 4, 1)]
)
def test_processes_that_ask_for_a_part_of_a_gpu_share_it(gpus, processes, together):
    asked = [] if gpus is None else [f"pools.rollout.gpus={gpus}"]
    config = load("quickstart", ["runtime=ray", f"pools.rollout.processes={processes}", *asked])
    assert sharing(config.pools.rollout) == together
    held = PoolForecast("rollout", processes, {"sample": Peak(10 * GIB, {REWARDS: 10 * GIB})}, 0, sharing=together)
    assert held.needs_of(80 * GIB) == together * needed(10 * GIB)
    assert held.can_fit(together * 10 * GIB)
    assert not held.can_fit(together * 10 * GIB - 1)


VLLM = ["rollout.engine=vllm", "rollout.vllm.python=vllm-env/bin/python"]
LIMITS = ["data.max_prompt_length=1024", "rollout.max_new_tokens=2048", "rollout.batch_size=128"]


def vllm(*options, apart=True):
    """What vLLM takes of a model of a billion weights."""
    text = SimpleNamespace(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=10, num_attention_heads=16, num_key_value_heads=4,
        vocab_size=32000, max_position_embeddings=100_000,
    )  # fmt: skip
    weights = {"a.weight": torch.empty(10**9, device="meta"), "a.lora_A.policy.weight": torch.empty(7, device="meta")}
    network = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda: text), named_parameters=lambda: iter(weights.items())
    )
    model = SimpleNamespace(network=network, compute=torch.bfloat16)
    return vllm_forecast(load("vlm_quickstart", [*VLLM, *LIMITS, *options]), model, apart=apart)


def test_vllm_s_weights_and_cache_are_shared_out_and_what_is_left_is_for_the_cache():
    one, four, eight = (vllm(f"rollout.vllm.tensor_parallel={size}") for size in (1, 4, 8))
    assert (one.weights, four.weights) == (2 * 10**9, 2 * 10**9 // 4)
    assert one.token == 2 * 10 * 4 * 64 * 2  # keys and values, layers, heads, width, bytes
    assert four.token == eight.token == one.token // 4  # every rank has a head
    assert one.expected == 3072
    assert one.working == BATCHED * (4 * 1024 + 2 * 4096) * 2 + 8 * 128 * 32000 + GRAPHS
    found, memory = vllm("rollout.vllm.memory_fraction=0.5", "rollout.vllm.max_model_len=3072"), 24 * GIB
    assert found.room(memory) == 12 * GIB - found.weights - found.working
    assert (found.takes(memory), found.complaint(memory)) == (12 * GIB, "")
    assert "128 of 128" in found.line(memory)
    assert "10 of 128" in vllm("rollout.vllm.kv_cache_gb=0.3").line(memory)  # 31 MiB each
    said = vllm("rollout.vllm.memory_fraction=0.1").complaint(memory)
    assert all(name in said for name in ("rollout.vllm.memory_fraction", "rollout.vllm.tensor_parallel"))
    said = vllm("rollout.vllm.kv_cache_gb=0.5").complaint(memory)  # a text of 100,000 tokens needs a GiB
    assert all(name in said for name in ("100000", "977 MiB", "rollout.vllm.max_model_len=3072"))


def test_a_gpu_that_is_shared_with_vllm_holds_both():
    half = ["rollout.vllm.memory_fraction=0.5", "rollout.vllm.max_model_len=3072"]
    for options, most, beside, fits in (
        (half, 10, 12, False), ([*half, "rollout.vllm.sleep=true"], 4, 12, True),
        (["rollout.vllm.devices='1'", half[1]], 10, 0, True),
    ):  # fmt: skip
        phases = {SAMPLE: Peak(4 * GIB), "update, backward": Peak(10 * GIB)}
        found = PoolForecast("train", 1, phases, 0, vllm=vllm(*options, apart=False))
        assert found.needs_of(24 * GIB) == needed(most * GIB) + beside * GIB
        assert Forecast((found,)).fits(23 * GIB) is fits
    for ranks, device in ((1, "auto"), (8, "cpu")):
        config = load("vlm_quickstart", [*VLLM, f"rollout.vllm.tensor_parallel={ranks}"])
        assert (config.sampler_config.model.device, config.model.device) == (device, "auto")


NETWORKS = [  # of which large ones take seconds
    pytest.param(name, part, marks=() if 1e8 < size < 2e9 else pytest.mark.thorough)
    for name, model in published().items()
    for part, size in model.weights.items()
]


@pytest.mark.parametrize(("name", "part"), NETWORKS)
def test_a_published_configuration_has_the_weights_of_its_model(tmp_path, name, part):
    import diffusers
    import transformers

    published()[name].write(tmp_path / "model")
    folder = tmp_path / "model" / part
    library, kind = read_object(tmp_path / "model" / PIPELINE)[part] if part else ("", "")
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if library == "diffusers":
            made = getattr(diffusers, kind).from_config(read_object(folder / "config.json"))
        else:
            config = None if kind else transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            made = getattr(transformers, kind or config.architectures[0])
            made = made(config or made.config_class.from_pretrained(folder, local_files_only=True))
    assert sum(one.numel() for one in made.parameters()) == pytest.approx(published()[name].weights[part], rel=5e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["runtime=ray", "pools.train.processes=2", "sharding.context_parallel=2"], "sharding.context_parallel=1"),
        (["validation.suites=[vlm_quickstart]"], "another suite"), (["validation.suites=[nowhere]"], "chartqa"),
        (["sharding.offload=true", "model.device=cuda", "model.lora=null"], "sharding.offload is true"),
    ],
)  # fmt: skip
def test_what_a_run_would_refuse_or_a_forecast_can_not_tell_is_said(options, words):
    assert words in burnish("plan", "quickstart", *options, status=2).message
