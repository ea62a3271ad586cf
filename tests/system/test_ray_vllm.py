"""vLLM beside the workers of a cluster: those that only sample, and those that also learn.

It needs an environment of its own (docs/vllm.md), whose Python BURNISH_VLLM_PYTHON names; without it nothing runs.
"""

import os

import pytest

from tests.support.ray_runs import ADAPTER, ROUNDING, SEEING, assert_close, run
from tests.support.runs import metrics_of

PYTHON = os.environ.get("BURNISH_VLLM_PYTHON")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(PYTHON is None, reason="BURNISH_VLLM_PYTHON names no Python with vLLM"),
]
VLLM = [
    "rollout.engine=vllm",
    f"rollout.vllm={{python: {PYTHON}, enforce_eager: true, kv_cache_gb: 0.06, max_model_len: 256, restarts: 0}}",
]
SHORT = [option for option in SEEING if not option.startswith(("steps=", "validation.every="))]
GIVEN = ["vlm_quickstart", *SHORT, "steps=3", "validation.every=3", *VLLM]


def earned(folder):
    """Rewards of what was learned from; where others sample, the ranks validate with Burnish's own decoder."""
    return [line["critic/rewards/mean"] for line in metrics_of(folder)[1:]]


@pytest.mark.parametrize("model", [[], ADAPTER], ids=["full", "adapter"])
def test_workers_with_a_vllm_each_learn_what_one_process_learns(machines, model, tmp_path):
    given = GIVEN + model
    assert run(tmp_path / "local", *given) == 0
    places = {"ranks": ["pools.train.processes=2"], "apart": ["pools.rollout.processes=1"]}
    for name, place in places.items():
        assert run(tmp_path / name, *given, *machines.options(), *place) == 0
        for line in metrics_of(tmp_path / name)[1:]:
            assert line["vllm/logprob_abs_diff_max"] < 1e-4
    assert_close(tmp_path / "ranks", tmp_path / "local", ROUNDING)
    assert earned(tmp_path / "apart") == earned(tmp_path / "local")
