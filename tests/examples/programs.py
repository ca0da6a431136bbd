"""Runs the example programs as forks of one process that has TensorFlow loaded: loading takes longer than most of them compute.

Uses Python's fork server: a program finds `digits` and TensorFlow loaded, and everything else as in a new process. A start from
the command line, without the fork server, is tested in tests/examples/test_digits.py.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_PR_SET_PDEATHSIG = 1


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.examples.loaded"])
    return context


_forks = _context()


def start(argv: Sequence[str], log: Path, env: Mapping[str, str]) -> ForkServerProcess:
    """Starts `python` with these arguments in the examples folder and returns the process. Appends its output to `log`."""
    log.touch()
    process = _forks.Process(target=_run, args=(list(argv), str(log), dict(env)))
    process.start()
    return process


def _run(argv: list[str], log: str, env: dict[str, str]) -> None:
    # End together with the fork server, which ends with the process that started it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(said, number)
    os.environ.update(env)
    os.chdir(EXAMPLES)
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")
