"""Forecasts of language models: what a run on fake tensors holds is what the same run on real ones holds."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from burnish.config.load import load
from burnish.forecast.counter import LiveBytes, Peak
from burnish.forecast.fakes import Pretending
from burnish.forecast.language import LanguageHalf
from burnish.forecast.phases import train_phases
from burnish.forecast.published import Published
from burnish.tasks import assemble
from burnish.utils.weights import without_weights

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


def peaks(folder: Path, options: list[str], *, real: bool) -> dict[str, Peak]:
    """What a run holds in every phase, on real tensors or on fake ones."""
    small = [
        f"model.path={folder}", "data.train_batch_size=2", "data.max_prompt_length=160", "rollout.max_new_tokens=48",
        "rollout.n=2", "rollout.batch_size=4", "trainer.mini_batch_size=4", "trainer.micro_batch_tokens=416",
        "validation.every=null", "data.decode_check=false",
    ]  # fmt: skip
    config = load("qwen25_vl/grpo", [*small, *options])
    pretending = None if real else Pretending()
    with ExitStack() as stack:
        if pretending is not None:
            stack.enter_context(pretending.active())
        stack.enter_context(without_weights())
        counter = stack.enter_context(LiveBytes())
        assembly = assemble(config)
        train_phases(assembly, counter, LanguageHalf(assembly, counter, pretending), samples=True)
        return counter.peaks


def compare(folder: Path, options: list[str]) -> None:
    real, fake = (peaks(folder, options, real=one) for one in (True, False))
    assert fake.keys() == real.keys()
    shown = {name: (peak.total / 2**20, fake[name].total / 2**20) for name, peak in real.items()}
    for name, peak in real.items():
        assert fake[name].total == pytest.approx(peak.total, rel=NEAR), (name, shown)


SETTINGS = {
    "full, float32": ["model.dtype=float32"],
    "full, bfloat16": [],
    "lora, float32": ["model.dtype=float32", "model.lora.rank=8"],
    "lora, bfloat16": ["model.lora.rank=8"],
}


@pytest.mark.parametrize("name", ["full, bfloat16", "lora, bfloat16"])
def test_a_forecast_is_what_a_real_run_holds(tmp_path: Path, name: str) -> None:
    compare(model(tmp_path / "model", hidden=256, layers=3, words=4096), SETTINGS[name])
