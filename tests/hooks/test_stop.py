import errno
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.hooks.stop import EXIT_STOPPED, StopRequest
from burnish.utils.errors import Cancelled

# a loop that says when it begins, when it has heard, and what became of it
LOOP = """
import signal, sys, time
from burnish.hooks.stop import EXIT_STOPPED, StopRequest
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell without jobs starts us with it ignored
patient = sys.argv[1] == "patient"
print("before", flush=True)
try:
    with StopRequest() as stop:
        print("running", flush=True)
        deadline, told = time.monotonic() + 30, False
        while time.monotonic() < deadline and not (stop.requested and not patient):
            if stop.requested and not told:
                told = True
                print(stop.requested, flush=True)
            time.sleep(0.005)
        print("saved", stop.requested, flush=True)
    sys.exit(EXIT_STOPPED)
except KeyboardInterrupt:
    print("interrupted", stop.requested, flush=True)
    sys.exit(130)
"""


def started(mode: str) -> subprocess.Popen:
    child = subprocess.Popen(
        [sys.executable, "-c", LOOP, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout.readline() == "before\n"
    assert child.stdout.readline() == "running\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_loop_finish(number):
    child = started("polite")
    child.send_signal(number)
    out, err = child.communicate(timeout=40)
    assert (child.returncode, out) == (EXIT_STOPPED, f"saved {number.name}\n")
    assert f"{number.name}: cancelling sampling or finishing this update" in err
    assert ("Ctrl-C again" in err) == (number == signal.SIGINT)
    assert EXIT_STOPPED == os.EX_TEMPFAIL


def test_a_second_ctrl_c_interrupts_at_once():
    child = started("patient")
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "SIGINT\n"
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, "interrupted SIGINT\n")


def test_sigterm_may_come_again_and_one_ctrl_c_after_it_is_the_first():
    child = started("patient")
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "SIGTERM\n"
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        child.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.3)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, "interrupted SIGTERM\n")
    assert "SIGHUP: already stopping, after SIGTERM" in err


def test_a_run_that_is_to_outlive_its_terminal_does():
    """As nohup starts it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = started("polite")
    finally:
        signal.signal(signal.SIGHUP, before)
    child.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=0.5)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=20)
    assert (child.returncode, out) == (EXIT_STOPPED, "saved SIGTERM\n")


def test_what_is_needed_no_more_ends_at_once():
    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    with StopRequest() as stop:
        with pytest.raises(Cancelled), stop.cancellable():
            work()
        assert stop.requested == "SIGTERM"
        os.kill(os.getpid(), signal.SIGTERM)  # outside, and once more: nothing happens
        with pytest.raises(Cancelled), stop.cancellable():
            pytest.fail("it was asked for before")


def test_an_interrupt_that_nobody_asked_for_goes_on():
    with StopRequest() as stop, pytest.raises(KeyboardInterrupt) as raised, stop.cancellable():
        raise KeyboardInterrupt
    assert raised.type is KeyboardInterrupt


# the last moments of a command, which take long
COMMAND = """
import sys, time
import burnish.cli as cli
sys.argv = ["burnish", "doctor"]
cli.VERBS["doctor"] = cli.Verb("", "", lambda parser: None, lambda args: 75)
code = cli.main()
print("saved", flush=True)
time.sleep(0.5)
sys.exit(code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_late_signal_does_not_change_the_exit_code(number):
    child = subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert child.stdout.readline() == b"saved\n"
    child.send_signal(number)
    assert child.wait(timeout=20) == EXIT_STOPPED
    child.stdout.close()


@pytest.mark.parametrize("raises", [False, True])
def test_the_handlers_of_before_come_back(raises):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ZeroDivisionError) if raises else StopRequest():
        with StopRequest() as stop:
            assert signal.getsignal(signal.SIGTERM) == stop._handle
            if raises:
                raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_pipe_without_a_reader_is_a_request(monkeypatch):
    read, write = os.pipe()
    with os.fdopen(write, "w") as unread, StopRequest() as stop:
        monkeypatch.setattr(sys, "stdout", unread)
        with stop.without_readers():
            print("one", flush=True)
            assert stop.requested is None
            os.close(read)
            print("two", flush=True)
            print("three", flush=True)
        assert sys.stdout is unread
    assert stop.requested == "its output, which nobody reads any more"


def test_a_log_on_a_full_disk_is_none():
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch, StopRequest() as stop:
        patch.setattr(sys, "stdout", Full())
        with pytest.raises(OSError, match="No space"), stop.without_readers():
            print("one")
    assert stop.requested is None
