import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from burnish.hooks.stop import EXIT_STOPPED, StopRequest

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_loop_finish(number):
    child = started("polite")
    child.send_signal(number)
    out, err = child.communicate(timeout=40)
    assert (child.returncode, out) == (EXIT_STOPPED, f"saved {number.name}\n")
    assert f"{number.name}: giving up the samples that are being made, or finishing this update" in err
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
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        child.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.3)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, "interrupted SIGTERM\n")


@pytest.mark.parametrize("raises", [False, True])
def test_the_handlers_of_before_come_back(raises):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ZeroDivisionError) if raises else StopRequest():
        with StopRequest() as stop:
            assert signal.getsignal(signal.SIGTERM) == stop._handle
            if raises:
                raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_another_thread_nothing_is_installed():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def enter() -> None:
        with StopRequest() as stop:
            seen.append((signal.getsignal(signal.SIGTERM), stop.requested))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(timeout=10)
    assert seen == [(before, None)]
