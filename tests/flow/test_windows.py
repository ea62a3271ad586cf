"""Windows: always within the range, never the last step, of one size, and a function of their key."""

import math

import pytest

from burnish.flow.windows import Window

WINDOWS = [
    Window(),
    Window(start=2),
    Window(kind="fixed", size=2, start=1),
    Window(kind="random", size=3),
    Window(kind="random", size=3, start=2, stop=7),
    Window(kind="random", size=3, scattered=True),
    Window(kind="progressive", size=2, every=3),
    Window(kind="progressive", size=4, every=1, stride=1, wrap=True),
    Window(kind="progressive", size=3, every=2, stride=2, stop=8),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("steps", [9, 10, 28])
def test_window(window, steps):
    for update in range(40):
        chosen = window.choose(steps, update=update, key=update * 7 + 1)
        assert len(chosen) == window.count(steps)
        assert chosen == sorted(set(chosen))
        assert set(chosen) <= set(window.within(steps))
        assert steps - 1 not in chosen
        assert window.choose(steps, update=update, key=update * 7 + 1) == chosen


@pytest.mark.parametrize("wrap", [False, True])
def test_a_progressive_window_passes_over_every_step_of_its_range(wrap):
    window = Window(kind="progressive", size=3, every=2, stride=2, wrap=wrap)
    seen = [tuple(window.choose(11, update=update, key=0)) for update in range(20)]
    assert set().union(*seen) == set(range(10))
    assert seen[:4:2] == [(0, 1, 2), (2, 3, 4)]
    assert all(seen[i] == seen[i + 1] for i in range(0, 20, 2))
    assert seen[8] == (7, 8, 9)
    assert seen[10] == ((0, 1, 2) if wrap else (7, 8, 9))


def test_without_scattering_a_random_window_is_a_run():
    window = Window(kind="random", size=3)
    runs = {tuple(window.choose(10, update=0, key=key)) for key in range(200)}
    assert runs == {(i, i + 1, i + 2) for i in range(7)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "random"}, "size"),
        ({"size": 2}, "size"),
        ({"kind": "fixed", "size": 2, "every": 3}, "every"),
        ({"kind": "random", "size": 2, "wrap": True}, "wrap"),
        ({"kind": "random", "size": 2, "stride": 2}, "stride"),
        ({"kind": "progressive", "size": 2, "scattered": True}, "scattered"),
        ({"kind": "fixed", "size": 2, "shared_by": "update"}, "shared_by"),
    ],
)
def test_an_option_that_is_never_read_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Window(**options)


@pytest.mark.parametrize(
    "options",
    [{"stop": 10}, {"kind": "fixed", "size": 10}, {"kind": "random", "size": 3, "start": 5, "stop": 7}],
)
def test_a_window_that_does_not_fit_is_refused(options):
    with pytest.raises(ValueError, match="window"):
        Window(**options).choose(10, update=0, key=0)


def test_deterministic_steps_may_include_the_last():
    assert Window(kind="last", size=3).choose(8, update=0, key=0, stochastic=False) == [5, 6, 7]
    assert Window(kind="last", size=3).choose(8, update=0, key=0) == [4, 5, 6]
    assert Window(kind="all").choose(4, update=0, key=0, stochastic=False) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="only the first 4 can be recorded"):
        Window(kind="all", stop=5).within(4, stochastic=False)


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        ({}, [4, 4, 4, 4]),
        ({"interval": "linear", "decay": 0.25}, [4, 3, 2, 1]),
        ({"interval": "linear", "decay": 0.9}, [4, 1, 1, 1]),
        ({"interval": "exponential", "decay": math.log(2)}, [4, 2, 1, 1]),
        ({"interval": "exponential", "decay": math.log(2), "decay_after": 2}, [4, 4, 4, 2]),
        ({"interval": "exponential", "decay": 0.5}, [4, 3, 2, 1]),
        ({"interval": "linear", "decay": 0.1}, [4, 3, 3, 2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("wrap", [True, False])
def test_a_window_stays_shorter_the_further_it_has_moved(options, stays, wrap):
    window = Window(kind="progressive", size=2, stride=1, every=4, wrap=wrap, **options)
    first = [window.choose(6, update=update, key=0)[0] for update in range(2 * sum(stays))]
    once = [place for place, stay in enumerate(stays) for _ in range(stay)]
    assert first == (2 * once if wrap else once + [3] * len(once))


@pytest.mark.parametrize(
    ("interval", "rounded"), [("exponential", math.ceil), ("linear", math.floor)], ids=["exponential", "linear"]
)
def test_a_falling_interval_is_rounded_as_by_the_authors(interval, rounded):
    """MixGRPO's code takes the ceiling of every exp(-0.1 max(step - 13, 0)), and the floor where it falls linearly."""
    window = Window(kind="progressive", size=4, stride=1, every=25, interval=interval, decay=0.1, decay_after=13)
    expected = []
    for step in range(21):  # 25 denoising steps, of which the last is never stochastic: 21 places for a window of 4
        beyond = max(step - 13, 0)
        exact = 25 * math.exp(-0.1 * beyond) if interval == "exponential" else 25 * (10 - beyond) / 10
        expected += [step] * rounded(exact)
    assert [window.choose(25, update=update, key=0)[0] for update in range(len(expected))] == expected


def test_a_window_that_moves_is_never_empty_nor_cut():
    """MixGRPO's own code cuts it at the end of the range, and leaves it empty for a while before it starts again."""
    for size, stride, every in ((4, 1, 3), (4, 3, 2), (1, 5, 1), (6, 1, 1)):
        window = Window(kind="progressive", size=size, stride=stride, every=every, wrap=True, stop=6)
        for update in range(100):
            assert len(window.choose(9, update=update, key=0)) == size


@pytest.mark.parametrize(
    "options", [{"decay": 0.2}, {"decay_after": 3}, {"interval": "linear", "kind": "random"}], ids=str
)
def test_a_pace_that_is_never_read_is_refused(options):
    with pytest.raises(ValueError, match="never read"):
        Window(**{"kind": "progressive", "size": 2, **options})
