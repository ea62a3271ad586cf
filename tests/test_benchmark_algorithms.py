"""The comparison of algorithms: its statistics, its table from runs, its place in the docs."""

import json

import pytest

from benchmarks import algorithms
from benchmarks.algorithms import Line, Member, between, collect, paired_t, table, train, write_docs
from burnish.config import dump, load
from burnish.report.summary import Summary
from burnish.utils.errors import UserError


# one-sided 5 % points of Student's t, from tables
@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 6.314), (2, 2.920), (3, 2.353), (4, 2.132), (5, 2.015), (6, 1.943), (7, 1.895), (9, 1.833)]
)
def test_paired_t_against_tables(freedom, t):
    n = freedom + 1
    gains = [float(i) for i in range(n)]
    centre = sum(gains) / n
    spread = (sum((g - centre) ** 2 for g in gains) / freedom) ** 0.5
    shift = t * spread / n**0.5 - centre
    assert paired_t([g + shift for g in gains]) == pytest.approx(0.05, abs=2e-4)
    assert paired_t([-g - shift for g in gains]) == pytest.approx(0.95, abs=2e-4)


def test_equal_gains_are_certain():
    assert paired_t([0.1, 0.1, 0.1]) == 0
    assert paired_t([0.0, 0.0]) == 1


def row(step, reward, seconds=None):
    found = {"training/global_step": step, "val-core/numbers/reward/mean@4": reward, "val-aux/variety": 0.06}
    return found if seconds is None else found | {"timing_s/step": seconds, "perf/total_num_images": 8.0}


def member(folder, algorithm, seed, rows, more=()):
    """A run that is finished if its rows go to the end."""
    found = Member("quickstart", algorithm, seed, folder / algorithm / str(seed), ("steps=2", *more))
    found.folder.mkdir(parents=True)
    (found.folder / "config.yaml").write_text(dump(found.config))
    (found.folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return found


def finished(gain, seconds):
    return [row(0, 0.5), {"timing_s/step": seconds, "training/global_step": 1}, row(2, 0.5 + gain, seconds)]


def members(folder):
    return [
        member(folder, "awm", 0, finished(0.30, 10.0)),
        member(folder, "awm", 1, finished(0.32, 8.0)),
        member(folder, "flow_grpo", 0, finished(0.40, 5.0)),
        member(folder, "flow_grpo", 1, finished(-0.40, 6.0)),
        member(folder, "crd", 0, finished(0.2, 5.0)[:1]),
    ]


def test_finished_runs_become_lines_the_best_first(tmp_path):
    lines = collect(members(tmp_path))
    assert [line.algorithm for line in lines] == ["awm", "flow_grpo"]
    awm, grpo = lines
    assert awm.rise() == "p = .010"
    assert grpo.rise().startswith("no, p = .500")
    assert (awm.seconds(), awm.samples()) == (16.0, 8)
    shown = table(lines, links=True).splitlines()
    assert shown[0] == (
        "| algorithm | validation reward | variety within a prompt | pictures | seconds | reward rose |"
    )
    assert shown[2] == ("| [awm](awm.md) | 0.500 → 0.810 ± 0.014 | 0.060 → 0.060 ± 0.000 | 8 | 16 | p = .010 |")


def test_one_seed_is_compared_with_the_spread_over_prompts():
    run = Summary(config={}, rows=[row(0, 0.5), row(2, 0.8)], reference=None, doubt={"val-core/*/reward/mean@*": 0.1})
    assert Line("awm", [run]).rise() == "beyond two standard errors over prompts"
    run.doubt = {"val-core/*/reward/mean@*": 0.4}
    assert Line("awm", [run]).rise() == "no"


def test_only_what_is_not_finished_is_trained(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(Member, "train", lambda self: trained.append(self.algorithm) or True)
    assert train(members(tmp_path), jobs=2)
    assert trained == ["crd"]


def test_a_run_with_other_options_is_not_taken_for_this_one(tmp_path):
    other = member(tmp_path, "awm", 0, finished(0.3, 1.0), more=("rollout.n=4",))
    with pytest.raises(UserError, match=r"rollout.n: 4 -> 12"):
        Member("quickstart", "awm", 0, other.folder, ("steps=2",)).finished()


def test_the_docs_get_the_table_and_each_page_its_own_line(tmp_path):
    lines = collect(members(tmp_path / "runs"))
    (tmp_path / "awm.md").write_text("# AWM\n\nText.\n")
    for _ in range(2):
        write_docs(lines, "quickstart", [0, 1], tmp_path)
    page = (tmp_path / "awm.md").read_text()
    assert page.startswith("# AWM\n\nText.\n\n<!-- result quickstart: begin -->\n**On the quickstart** (2 updates")
    assert page.count("0.500 → 0.810 ± 0.014") == 1
    assert "| [flow_grpo](flow_grpo.md) |" in (tmp_path / "README.md").read_text()


def test_marks_keep_what_is_around_them(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n")
    between(page, "x", "new")
    assert page.read_text() == "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb\n"
    page.write_text("a\n<!-- x: begin -->\nold\n")
    with pytest.raises(UserError, match="without"):
        between(page, "x", "new")


def test_the_default_is_every_algorithm_of_the_recipes_task(monkeypatch, tmp_path, capsys):
    seen = []
    monkeypatch.setattr(algorithms, "train", lambda members, jobs: seen.extend(members) or True)
    monkeypatch.setattr("sys.argv", ["algorithms", "--runs", str(tmp_path), "--seeds", "3"])
    assert algorithms.main() == 1, "there is nothing to show"
    assert {m.seed for m in seen} == {3}
    assert load("quickstart").algorithm.name in {m.algorithm for m in seen}
    assert "draft" in {m.algorithm for m in seen}
