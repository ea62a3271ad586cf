import pytest

from burnish.commands import doctor
from burnish.commands.doctor import Finding


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_the_exit_code_says_whether_the_quickstart_can_run(monkeypatch, capsys, state, code):
    monkeypatch.setattr(doctor, "CHECKS", {"thing": lambda: Finding(state, "found", "advice")})
    assert doctor.doctor() == code
    shown = capsys.readouterr().out
    assert state in shown
    assert "advice" in shown


def test_a_check_that_breaks_is_a_finding():
    def broken():
        raise RuntimeError("no such thing")

    finding = doctor.examine(broken)
    assert finding.state == "fail"
    assert "no such thing" in finding.found


def test_a_package_of_another_version_fails_with_the_command_that_mends_it(monkeypatch):
    monkeypatch.setattr(doctor, "requirements", lambda: ["rich>=900", "nothing-of-that-name>=1"])
    finding = doctor.check_dependencies()
    assert finding.state == "fail"
    assert "pip install 'rich>=900' 'nothing-of-that-name>=1'" in finding.advice


def test_the_packages_of_this_project_are_read():
    assert any(one.startswith("torch") for one in doctor.requirements())
    assert not any("pytest" in one for one in doctor.requirements())


@pytest.mark.parametrize("check", [doctor.check_python, doctor.check_speed, doctor.check_memory, doctor.check_device])
def test_the_machine_is_measured(check):
    finding = check()
    assert finding.state in ("ok", "warn")
    assert finding.found


def test_full_disks_and_missing_files_say_what_to_do(monkeypatch, tmp_path):
    from burnish.utils import paths

    monkeypatch.setattr(paths, "ASSETS", tmp_path)
    assert "burnish:quickstart/model" in doctor.check_quickstart().found
    assert doctor.check_quickstart().state == "fail"
    monkeypatch.setattr(doctor, "NEEDED_DISK", 1e9)
    assert doctor.check_disk_space().state == "fail"
    assert "output_dir" in doctor.check_disk_space().advice


def test_the_quickstart_is_checked_as_train_checks_it(recipe):
    assert doctor.check_quickstart().state == "ok"


def test_the_word_is_drawn_black_on_white():
    image = doctor.draw("472")
    assert image.shape == (48, 96, 3)
    assert image.min() < 50
    assert image.mean() > 150
