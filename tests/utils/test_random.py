"""Seeds: a draw depends on what it is for, and on nothing else."""

import torch

from burnish.utils import random


def test_a_row_depends_on_its_key_alone():
    rows = [(7, "rollout", update, uid, sample) for update in (0, 1) for uid in ("a", "b") for sample in range(3)]
    whole = random.normal((2, 3), rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    torch.manual_seed(99)
    assert torch.equal(random.normal((2, 3), [rows[i] for i in order]), whole[order])
    for i in range(len(rows)):
        assert torch.equal(random.normal((2, 3), rows[i : i + 1])[0], whole[i])
    assert torch.unique(whole.flatten()).numel() == whole.numel()


def test_drawing_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    random.normal((4,), [(1,)])
    random.uniform(4, [(1,)])
    random.permutation(4, 1)
    assert torch.equal(torch.rand(3), expected)


def test_keys_do_not_run_into_each_other():
    keys = [
        (1, 2),
        (12,),
        ("1", 2),
        (1, "2"),
        ("12",),
        ("1", "2"),
        (1, 2, ""),
        (2, 1),
        ("", 1, 2),
        ("1\x1fs2",),
    ]
    assert len({random.key(*parts) for parts in keys}) == len(keys)
    assert all(0 <= random.key(*parts) < 2**63 for parts in keys)


def test_the_numbers_never_change():
    """A run can only be repeated by a later version if these stay."""
    assert random.key(0, "rollout", 3, "abc", 1) == 3061033483697161223
    assert random.permutation(6, 1, "order") == [0, 3, 2, 4, 5, 1]


def test_distribution():
    normal = random.normal((100,), [(i,) for i in range(200)])
    assert abs(float(normal.mean())) < 0.02
    assert abs(float(normal.std()) - 1) < 0.02
    uniform = random.uniform(100, [(i,) for i in range(200)])
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(float(uniform.mean()) - 0.5) < 0.01
    assert sorted(random.permutation(50, "x")) == list(range(50))
