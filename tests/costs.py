"""What tests cost: `pytest --costs` prints which tests and files took most processor time, with that of all programs that they
started. Unlike their duration, it hardly depends on what else the machine does. What shared servers do counts for the test that
runs meanwhile.

A control group (version 2, which only root can make) counts also what the tasks of this machine's cloud use: they are nobody's
children."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

SHOWN, WIDTH = 40, 140
_PROPERTY = "processor"


class Costs:
    """Each process of `pytest -n` has a group of its own, in that of the main process."""

    def __init__(self) -> None:
        self.tests, self.files = Counter[str](), Counter[str]()
        mount = re.search(r"^\S+ (\S+) cgroup2 ", Path("/proc/mounts").read_text(), re.MULTILINE)
        place = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        if not mount or not place:
            raise pytest.UsageError("--costs needs control groups of version 2.")
        self.group = Path(mount[1]) / place[1] / f"pytest-{os.getpid()}"
        try:
            self.group.mkdir()
            (self.group / "cgroup.procs").write_text("0")  # this process
        except OSError as error:
            raise pytest.UsageError(f"--costs makes a control group, as root: {error}") from error

    def spent(self) -> float:
        """Processor seconds so far."""
        return int((self.group / "cpu.stat").read_text().split()[1]) / 1e6

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """After the servers have ended."""
        (self.group.parent / "cgroup.procs").write_text("0")
        with contextlib.suppress(OSError):  # something still runs
            self.group.rmdir()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        self.before = self.spent()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = self.spent()
        report.user_properties = [(_PROPERTY, now - self.before)]
        self.before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = float(dict(report.user_properties).get(_PROPERTY, 0))  # type: ignore[arg-type]
        self.tests[report.nodeid] += seconds
        self.files[report.nodeid.partition("::")[0]] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for title, found in (("files", self.files), ("tests", self.tests)):
            terminalreporter.write_sep("=", f"{title} by processor time, of {found.total():.0f} s")
            for name, seconds in found.most_common(SHOWN):
                terminalreporter.write_line(f"{seconds:8.1f} {name[:WIDTH]}")
