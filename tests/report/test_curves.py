"""Curves: points are where their values say, inside the frame, and gaps stay gaps."""

import re

import pytest

from burnish.report.curves import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, Series, nice_ticks


def dots(svg: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle[^>]* cx="([\d.]+)" cy="([\d.]+)"', svg)]


def chart(*values, **options) -> str:
    points = list(enumerate(values))
    return Chart("reward", [Series("validation", "validation", points, dots=True)], len(values) - 1, **options).html()


def test_points_are_linear_in_update_and_value():
    (x0, y0), (x1, y1), (x2, y2) = dots(chart(0.0, 0.5, 1.0))
    assert (x0, y0) == (LEFT, HEIGHT - BOTTOM)
    assert (x2, y2) == (WIDTH - RIGHT, TOP)
    assert (x1, y1) == pytest.approx(((x0 + x2) / 2, (y0 + y2) / 2), abs=0.1)


@pytest.mark.parametrize(
    "values", [(3.0, 3.0), (0.0, 0.0), (-1e-9, 1e-9), (1e12, 2e12), (-5.0, 7.0), (0.1, 0.1 + 1e-15), (2.0,)]
)
def test_everything_stays_inside_the_frame(values):
    for x, y in dots(chart(*values)):
        assert LEFT <= x <= WIDTH - RIGHT
        assert TOP <= y <= HEIGHT - BOTTOM


def test_the_reference_is_inside_too():
    svg = chart(0.1, 0.2, reference=("guided", 5.0))
    line = re.search(r'class="line reference" d="M44 ([\d.]+)H', svg)
    assert line
    assert TOP <= float(line.group(1)) < min(y for _, y in dots(svg))
    assert "guided" in svg


def test_a_gap_is_not_bridged():
    svg = chart(1.0, 2.0, None, 3.0, 4.0)
    path = re.search(r'class="line validation" d="([^"]*)"/></svg>|class="line validation" d="([^"]*)"', svg)
    assert path
    assert (path.group(1) or path.group(2)).count("M") == 2
    assert len(dots(svg)) == 4


def test_a_change_too_small_to_speak_of_does_not_look_like_a_cliff():
    (_, before), (_, after) = dots(chart(0.002, 0.004, span=0.04))
    assert 0 < before - after < 0.1 * (HEIGHT - TOP - BOTTOM)
    (_, before), (_, after) = dots(chart(0.002, 0.004))
    assert before - after > 0.9 * (HEIGHT - TOP - BOTTOM)


def test_nothing_to_show_is_no_chart():
    assert chart(None, None) == ""


@pytest.mark.parametrize("low", [-3.7, 0.0, 1e-7, 0.013, 812.0])
@pytest.mark.parametrize("span", [0.0, 1e-6, 0.3, 1.0, 7.0, 12345.0])
def test_ticks_are_few_round_and_span_the_range(low, span):
    ticks = nice_ticks(low, low + span)
    assert 2 <= len(ticks) <= 7
    assert ticks[0] <= low + 1e-9 * abs(low)
    assert ticks[-1] >= low + span - 1e-9 * abs(low + span)
    step = ticks[1] - ticks[0]
    assert f"{step:.0e}"[0] in "125"


@pytest.mark.parametrize("last", [1, 2, 3, 7, 30, 1000])
def test_updates_are_whole(last):
    assert all(tick == int(tick) for tick in nice_ticks(0, last, integer=True))


def test_percent_and_tiny_numbers_are_written_as_people_write_them():
    one = Chart("x", [], 1)
    assert one.tick(3e-4, 1e-4) == "3e−4"
    assert one.tick(0.0, 1e-4) == "0"
    assert one.tick(-0.25, 0.05) == "−0.25"
    assert one.tick(20.0, 10.0) == "20"
    assert Chart("x", [], 1, percent=True).tick(0.905, 0.1) == "90 %"


def test_an_axis_of_what_is_left_begins_at_zero():
    points = [(0, 0.056), (30, 0.029)]
    chart = Chart("Variety", [Series("validation", "validation", points)], 30, zero=True)
    assert ">0</text>" in chart.html().replace(' class="end"', "")
    assert chart._range() == (0.0, 0.056)
