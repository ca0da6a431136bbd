"""What tests cost: `pytest --costs` prints which tests and files took most processor time, with that of all programs that they
started. Unlike their duration, it hardly depends on what else the machine does. What shared servers do counts for the test that
runs meanwhile."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

SHOWN, WIDTH = 40, 140
_PROPERTY = "processor"
_TICK = os.sysconf("SC_CLK_TCK")


def spent() -> float:
    """Processor seconds of this process and its descendants so far, with those that have ended."""
    children, times = defaultdict[int, list[int]](list), {}
    for folder in os.listdir("/proc"):
        if not folder.isdigit():
            continue
        try:
            fields = Path(f"/proc/{folder}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        children[int(fields[1])].append(int(folder))
        times[int(folder)] = sum(map(int, fields[11:15]))
    total, left = 0, [os.getpid()]
    while left:
        process = left.pop()
        total += times.get(process, 0)
        left += children[process]
    return total / _TICK


class Costs:
    def __init__(self) -> None:
        self.tests, self.files = Counter[str](), Counter[str]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        self.before = spent()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = spent()
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
