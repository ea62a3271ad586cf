"""What the page computes before it draws: axes, smoothing, ranges, filters, groups and sweeps, run by Node.js."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from burnish.report.page import SCRIPTS, web

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")


def computed(expression: str, **given: Any) -> Any:
    """The value of a JavaScript expression in the page's scripts, of which the last one starts the page."""
    names = "".join(f"const {name} = {json.dumps(value)};" for name, value in given.items())
    script = web(*(f"{one}.js" for one in SCRIPTS[:-1])) + f"{names}console.log(JSON.stringify({expression}))"
    done = subprocess.run([str(NODE), "-"], input=script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LINE = {"name": "a", "style": "training", "x": [0, 10, 20, 40], "y": [0.0, 100.0, None, 1000.0]}
AXES = {"update": [0, 20, 40], "samples": [0, 640, 1280], "seconds": [0, 60, 300]}


def test_a_curve_is_drawn_along_steps_samples_and_time():
    looks = "(state) => viewOf(state, { update: 40, samples: 1280, seconds: 300 })"
    drawn = "AXES.map(([axis]) => look({axis})).map((view) => [view.name, view.last, along(line, used, view).x])"
    assert computed(f"(look => {drawn})({looks})", line=LINE, used=AXES) == [
        ["update", 40, [0, 10, 20, 40]], ["samples", 1280, [0, 320, 640, 1280]], ["min", 5, [0, 0.5, 1, 5]],
    ]  # fmt: skip
    assert computed(f"updatesIn(({looks})({{axis: 'seconds', from: 0.5, to: 3}}), used)", used=AXES) == [10, 30]
    view = computed(f"({looks})({{axis: 'x', from: 'y', to: -1, smooth: 7}})")
    assert [view[name] for name in ("axis", "from", "to", "smooth")] == ["update", 0, 40, 0.99]


def test_scales_hold_what_is_in_view_and_a_logarithm_needs_values_above_zero():
    def drawn(log: bool, to: float, *y: float | None) -> Any:
        scale = "(one) => one && [one.under.length, one.beside.map(([at, text]) => [text, Math.round(one.y(at))])]"
        view = {"axis": "update", "from": 0, "to": to, "log": log, "smooth": 0}
        return computed(f"({scale})(frame(chart, view, 360, 190))", chart={"series": [LINE | {"y": y}]}, view=view)

    assert drawn(True, 40, *LINE["y"]) == [5, [["100", 164], ["200", 118], ["500", 56], ["1000", 10]]]
    assert [text for text, _ in drawn(False, 5, *LINE["y"])[1]] == ["0", "20", "40", "60"], "up to between two points"
    assert drawn(True, 40, -1, 0, -2, 0) is None


def test_smoothing_is_a_mean_whose_weights_fall_with_distance():
    x, y = [0, 1, 2, 3, 50], [1.0, 0.0, None, 1.0, 0.5]
    assert computed("smoothed({x, y}, 0.5)", x=x, y=y) == pytest.approx([1.0, 1 / 3, None, 13 / 15, 0.5])
    assert computed("smoothed({x, y: [9, 9], mean: [1, 1]}, 0.5)", x=[0, 1]) == [1, 1], "of a thinned line its means"


RUNS = [
    {"id": str(i), "name": f"run{i}", "state": "finished", "notes": notes, "best": {"reward": best}, "last": last}
    for i, (notes, best, last) in enumerate([("the #base line", 0.5, 0.4), ("", 0.7, 0.6), ("", 0.9, None)])
]
OPTIONS = {
    "task": '"t"', "optimizer.lr": ["0.001", "0.001", "0.0001"], "seed": ["0", "1", "0"],
    "data.prompts": ['"a b"', '"a b"', None], "output_dir": ['"x"', '"y"', '"z"'],
}  # fmt: skip
FOUND = {
    "finished run1": "1", "#base": "0", "lr=1e-3": "01", "lr!=0.001": "2", "best>0.6 lr=0.001": "1", "now<0.5": "0",
    '"data.prompts=a b"': "01", "task=t seed=0": "02", "nothing!=1": "", "state!=running": "012",
}  # fmt: skip


def test_runs_are_found_sorted_grouped_and_swept_by_options():
    def of_runs(expression: str, **given: Any) -> Any:
        read = "const all = { runs: new Map(runs.map((row, i) => [row.id, i])), values };"
        names = "const ids = (rows) => rows.map((row) => row.id).join('');"
        return computed(f"(() => {{ {read} {names} return {expression} }})()", runs=RUNS, values=OPTIONS, **given)

    found = of_runs("queries.map((query) => ids(runs.filter((row) => matches(row, query, all))))", queries=list(FOUND))
    assert dict(zip(FOUND, found, strict=True)) == FOUND
    by = of_runs(
        "['now', 'data.prompts'].map((name) => [false, true].map((way) => ids(ordered(runs, name, way, all))))"
    )
    assert by == [["012", "102"], ["012", "012"]], "those without a value are last"
    best = "[...grouped(runs, 'optimizer.lr', all)].map(([value, rows]) => [value, plusMinus(rows.map(FIELDS.best))])"
    assert of_runs(best) == [["0.001", "0.600 ± 0.141"], ["0.0001", "0.900"]]
    head, *swept = [row[:4] for row in of_runs("sweepCsv(runs, all)")]
    assert head == ["optimizer.lr", "runs", "best", "best std"], "what goes along with another option is no column"
    assert swept == [[0.001, 2, *map(pytest.approx, (0.6, 0.02**0.5))], [0.0001, 1, 0.9, None]]
    labels = of_runs("[[0.001, 0.0001], ['b', 'a', undefined]].map((values) => axisOf(values).labels)")
    assert labels == [[[1, "0.001"], [0, "0.0001"]], [[0, "–"], [0.5, "a"], [1, "b"]]]
    row = ["a,b", '"', "=1+1", -1, None, "-1"]
    assert computed("csv([row])", row=row) == '"a,b","""",\'=1+1,-1,,\'-1\r\n', "no text becomes a formula"


def test_bands_join_runs_by_seed_or_by_an_option():
    different = [{"option": "seed", "values": ["0", "1", "0"]}, {"option": "lr", "values": ["1", "1", "2"]}]
    found = {"differences": different, "runs": [{"id": one, "name": one} for one in "abc"]}
    bands = "['run', 'seed', 'lr'].map((way) => bandsOf(found, way).map((one) => one.name))"
    assert computed(bands, found=found) == [["a", "b", "c"], ["a and 1 more seed", "c"], ["lr 1", "lr 2"]]
    band = computed("bandOf(lines, 'n', 's')", lines=[{"x": [0, 2], "y": [0, 2]}, {"x": [0, 1, 2], "y": [1, 2, 3]}])
    assert [band[name] for name in ("x", "y", "low", "high")] == [[0, 1, 2], [0.5, 1.5, 2.5], [0, 1, 2], [1, 2, 3]]
