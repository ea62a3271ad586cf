"""What saving and loading take beside what a rank holds does not grow with the model, and nothing is read again."""

import pytest

from benchmarks.checkpoints import measure

CONSTANT = 16.0  # MiB: pieces that are written and read


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("size", "asynchronous"),
    [*(pytest.param(size, False, marks=pytest.mark.thorough) for size in (1, 4)), (2, False), (2, True)],
)
def test_the_peak_is_a_share_and_a_constant(tmp_path, new_process, size, asynchronous):
    total = 96 * 4 // 3  # MiB of weights, moments and average
    found = new_process(measure, size, tmp_path, matrices=8, asynchronous=asynchronous)
    for rank, (save, load) in enumerate(zip(found["save"], found["load"], strict=True)):
        share = save["share"]
        assert share == total / size
        copied = share if asynchronous else 0.0
        assert save["above"] <= copied + 0.15 * share + CONSTANT
        assert load["above"] <= 0.15 * share + CONSTANT
        assert save["read"] < 1.0, "what was written is not read again"
        verified = total if rank == 0 else 0.0
        assert load["read"] < verified + share + 1.0, "a rank reads its own slices"
