"""Python programs as forks of one process that has imported everything: workers start in a second instead of ten.

``python -m tests.support.forks serve SOCKET`` is that process; it ends when its standard input does.
``python -S forks.py SOCKET PROGRAM ARGUMENTS...`` stands for ``python PROGRAM ARGUMENTS...``: the program gets this
command's folder, environment and standard streams, and neither of the two processes outlives the other.
"""

import json
import os
import socket
import sys
from typing import NoReturn

RECIPES = {
    "vlm_quickstart": [],
    "quickstart": ["rewards.ocr=null", "rewards.border_darkness.weight=1"],  # what reads texts takes long to load
}
STREAMS = 3
HEAD = 8  # bytes of an order's length


def main() -> None:
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        ask(sys.argv[1], sys.argv[2:])


def ask(address: str, program: list[str]) -> None:
    """Have a program run, and stay as long as it does."""
    order = json.dumps({"program": program, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        socket.send_fds(line, [len(order).to_bytes(HEAD, "big")], range(STREAMS))
        line.sendall(order)
        line.recv(1)  # nothing comes; the line is open while the program runs


def serve(address: str) -> None:
    """Import what workers need, then fork for whoever asks."""
    import gc
    import select
    import signal

    for recipe, options in RECIPES.items():
        import_everything(recipe, *options)
    assert "ray" not in sys.modules, "Ray reads the environment when it is imported: its workers have to do that"
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen(64)
        print("ready", flush=True)
        while sys.stdin not in select.select([door, sys.stdin], [], [])[0]:
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setpgrp()  # as Ray starts its workers: it ends whole groups, and the tests are not of theirs
                become(line)
            line.close()


def import_everything(recipe: str, *overrides: str) -> None:
    """Make what a run is made of, and drop it: models are imported by whoever loads them."""
    from burnish.config import load
    from burnish.tasks import assemble

    assembly = assemble(load(recipe, ["model.lora.rank=2", *overrides]))
    assembly.check_data()
    assembly.check()


def become(line: socket.socket) -> NoReturn:
    """The program that is asked for, in this process."""
    import atexit
    import random
    import runpy
    import threading
    import traceback

    head, streams, _, _ = socket.recv_fds(line, HEAD, STREAMS)
    with line.makefile("rb") as file:
        order = json.loads(file.read(int.from_bytes(head, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # others than before: no file, where there was one
        setattr(sys, name, os.fdopen(number, "w" if number else "r", buffering=1, closefd=False))
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = order["program"]
    random.seed()
    threading.Thread(target=end_with, args=[line], daemon=True).start()
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # libraries would wait for threads that a fork lacks


def end_with(line: socket.socket) -> None:
    """Whoever asked is gone."""
    line.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main()
