"""Forecasts of language models: what a run on fake tensors holds is what the same run on real ones holds."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from torch import Tensor

from benchmarks.forecasts import Aside
from burnish.config.load import load
from burnish.forecast.counter import BUFFERS, LiveBytes
from burnish.forecast.decoding import kept_by_class
from burnish.forecast.fakes import Pretending
from burnish.forecast.forecast import forecast
from burnish.forecast.language import LanguageHalf
from burnish.forecast.phases import LOAD, RECEIVE, train_phases
from burnish.forecast.published import Published
from burnish.forecast.ranks import pretend_ranks
from burnish.forecast.tiers import known_tiers, measured
from burnish.language.kept import Kept
from burnish.models.language.own.cache import Cached
from burnish.tasks import assemble
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.utils.weights import without_weights
from tests.support.games import Shows, play, prompts
from tests.support.rank_runs import together

NEAR = 0.10  # a forecast's relative error


def model(folder: Path, *, hidden: int, layers: int, words: int, tied: bool = False) -> Path:
    """A Qwen2.5-VL of any size, without weights."""
    heads = hidden // 32
    about = {
        "model_type": "qwen2_5_vl", "weights": 0,
        "config": {
            "text_config": {
                "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers,
                "num_attention_heads": heads, "num_key_value_heads": max(heads // 4, 1), "vocab_size": words,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
                "max_position_embeddings": 4096, "tie_word_embeddings": tied,
            },
            "vision_config": {
                "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": hidden,
                "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1],
            },
            "tie_word_embeddings": tied,
        },
        "processor": {
            "image_processor": {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
                                "size": {"shortest_edge": 3136, "longest_edge": 1 << 20}},
        },
    }  # fmt: skip
    Published("a small one", "config.json", about).write(folder)
    return folder


def recurrent(folder: Path) -> None:
    """A Qwen3.5, most of whose layers are recurrent: its class has a cache of its own."""
    about = {
        "model_type": "qwen3_5", "weights": 0,
        "config": {
            "text_config": {
                "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
                "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096, "linear_num_key_heads": 2,
                "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2],
                                    "partial_rotary_factor": 0.25},
            },
            "vision_config": {
                "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 128,
                "patch_size": 16, "num_position_embeddings": 64,
            },
        },
        "processor": {
            "image_processor": {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
                                "size": {"shortest_edge": 4096, "longest_edge": 1 << 20}},
        },
    }  # fmt: skip
    Published("a small one", "config.json", about).write(folder)


def peaks(options: list[str], ranks: Ranks, folder: Path, *, pretending: Pretending | None = None) -> dict[str, int]:
    """What a rank holds in every phase of a run, on real tensors or on fake ones."""
    size = ranks.size
    small = [
        f"model.path={folder / 'model'}", f"data.train_batch_size={2 * size}", "data.max_prompt_length=160",
        "rollout.max_new_tokens=48", "rollout.n=2", "rollout.batch_size=4", f"trainer.mini_batch_size={4 * size}",
        "trainer.micro_batch_tokens=416", "validation.every=null", "validation.before=false",
    ]  # fmt: skip
    own = {option.partition("=")[0] for option in options}
    config = load("qwen25_vl/grpo", [*(one for one in small if one.partition("=")[0] not in own), *options])
    with ExitStack() as stack:
        counter = Aside() if pretending is None else LiveBytes()
        if pretending is not None:
            stack.enter_context(known_tiers(config, counter, shared=size > 1))
            stack.enter_context(pretending.active())
        stack.enter_context(without_weights())
        stack.enter_context(counter)
        assembly = assemble(config, ranks)
        half = LanguageHalf(assembly, counter, pretending)
        train_phases(assembly, counter, half, samples=True, primed=pretending is not None)
        return {name: peak.total for name, peak in counter.peaks.items()}


def compare(options: list[str], folder: Path, *, size: int = 1) -> None:
    work = partial(peaks, options)
    real = work(SINGLE_RANK, folder) if size == 1 else together(work, folder, size=size)[0]
    with pretend_ranks(size) as ranks:
        fake = work(ranks, folder, pretending=Pretending())
    assert fake.keys() == real.keys()
    shown = {name: (one / 2**20, fake[name] / 2**20) for name, one in real.items()}
    for name, one in real.items():
        assert fake[name] == pytest.approx(one, rel=NEAR), (name, shown)


PPO = [
    "algorithm={name: ppo, kl: {route: loss, kind: k3, coef: 0.01}}", "critic.optimizer.lr=1e-5",
]  # fmt: skip
SETTINGS = {
    "full, float32": ["model.dtype=float32"],
    "full, bfloat16": [],
    "ppo, bfloat16": PPO,
    "lora, float32": ["model.dtype=float32", "model.lora.rank=8"],
    "lora, bfloat16": ["model.lora.rank=8"],
    "lora ppo, bfloat16": [*PPO, "model.lora.rank=8"],
}


@pytest.mark.parametrize("name", ["ppo, bfloat16", "lora, bfloat16"])
def test_a_forecast_is_what_a_real_run_holds(tmp_path: Path, name: str) -> None:
    model(tmp_path / "model", hidden=128, layers=3, words=4096)
    compare(SETTINGS[name], tmp_path)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_forecast_of_a_larger_model_is_what_a_real_run_holds(tmp_path: Path, name: str) -> None:
    model(tmp_path / "model", hidden=768, layers=8, words=16384)  # 85 M weights
    compare(SETTINGS[name], tmp_path)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["full, bfloat16", "lora, bfloat16"])
def test_a_forecast_of_several_ranks_is_what_each_holds(tmp_path: Path, name: str, size: int) -> None:
    model(tmp_path / "model", hidden=256, layers=4, words=4096)
    compare(SETTINGS[name], tmp_path, size=size)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_class_with_a_cache_of_its_own_is_what_a_real_run_holds(tmp_path: Path) -> None:
    """A forecast decodes three tokens, the real run all of them."""
    recurrent(tmp_path / "model")
    tiers, _ = measured("qwen3_5") or pytest.fail("there is no tiny one")
    assert tiers.padded
    assert not tiers.fast
    options = ["model.dtype=float32"]
    real = peaks(options, SINGLE_RANK, tmp_path)
    fake = peaks(options, SINGLE_RANK, tmp_path, pretending=Pretending())
    assert fake.keys() == real.keys()
    shown = {name: (one / 2**20, fake[name] / 2**20) for name, one in real.items()}
    for name in real.keys() - {LOAD}:  # in which the real run compares what the class can do
        assert fake[name] == pytest.approx(real[name], rel=NEAR), (name, shown)


def test_validations_of_more_responses_than_updates_have_are_counted(tmp_path: Path) -> None:
    model(tmp_path / "model", hidden=128, layers=3, words=512)
    (tmp_path / "longer.yaml").write_text(
        "task: image-text-to-text\nprompts: burnish:vlm_quickstart/heldout.jsonl\nscorers: {exact: {}}\n"
        "responding: {max_new_tokens: 96}\ndata: {max_prompt_length: 160}\n"
    )
    options = ["rollout.batch_size=8", "validation.before=true"]
    suites = [f"validation.suites=[{tmp_path / 'longer.yaml'}]", "validation.suite_prompts=8"]
    found = [peaks([*options, *more], SINGLE_RANK, tmp_path, pretending=Pretending()) for more in ([], suites)]
    assert found[0]["sample"] < found[0]["validate"] < found[1]["validate"]


def test_a_worker_that_samples_is_loaded_in_the_precision_that_it_rests_in(tmp_path: Path) -> None:
    model(tmp_path / "model", hidden=128, layers=3, words=512)
    ray = ["runtime=ray", "pools.train.processes=1", "pools.rollout.processes=1", "rollout.max_new_tokens=16"]
    given = [f"model.path={tmp_path / 'model'}", *ray, "rollout.batch_size=1", "data.train_batch_size=1", "rollout.n=2"]
    _, worker = forecast(load("qwen25_vl/grpo", [*given, "trainer.mini_batch_size=null"])).pools
    _, wide = forecast(load("qwen25_vl/grpo", [*given, "trainer.mini_batch_size=null", "model.dtype=float32"])).pools
    assert worker.phases[LOAD].total < 0.7 * wide.phases[LOAD].total
    come = worker.phases[RECEIVE]
    assert come.wire == pytest.approx(come.parts[BUFFERS], rel=0.01)  # which are as large as what is trained: all


@pytest.mark.parametrize("cache", ["burnish", "class"])
def test_turns_that_are_kept_are_counted(tmp_path: Path, cache: str) -> None:
    if cache == "class":
        recurrent(tmp_path / "model")
    else:
        model(tmp_path / "model", hidden=128, layers=3, words=512)
    options = ["model.dtype=float32"]
    options += ["environment.name=function", "environment.path=tests.support.games:Show", "environment.max_turns=3"]
    found = {}
    for kept in (0.0, 0.0005):
        more = [*options, f"environment.kept_gb={kept}"]
        found[kept] = peaks(more, SINGLE_RANK, tmp_path, pretending=Pretending())["sample"]
    assert found[0.0005] - found[0.0] == pytest.approx(0.0005 * 2**30, rel=0.02)


@pytest.mark.parametrize("family", ["qwen3_5", pytest.param("gemma3", marks=pytest.mark.thorough)])
def test_the_size_of_what_a_class_keeps_is_known(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recurrent states are as large for any conversation, sliding windows end; the size of one tells that of others."""
    told, put = dict[int, int](), Kept.put

    def noted(self: Kept, name: object, ids: Tensor, cached: Cached, size: int) -> None:
        told[len(ids)] = size
        assert {tokens: kept_by_class(cached, tokens) for tokens in told} == told
        put(self, name, ids, cached, size)

    monkeypatch.setattr(Kept, "put", noted)
    play(Shows(max_turns=3), prompts(), family=family)
    assert len(told) > 1


def test_ranks_that_sample_gather_the_policy_alone(tmp_path: Path) -> None:
    model(tmp_path / "model", hidden=64, layers=2, words=512)
    config = load("qwen25_vl/grpo", [f"model.path={tmp_path / 'model'}", *PPO])
    with pretend_ranks(2) as ranks, Pretending().active(), without_weights():
        roles = assemble(config, ranks).roles
        with roles.gathered():
            found = {name: network.is_gathered for name, network in roles.shards.networks.items()}
    assert found == {"policy": True, "reference": False, "critic": False}
