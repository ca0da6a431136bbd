"""How the processes of a parallel run were used: the last lines say until when each had tests, and which groups took longest.

If one ends long before the others, a group is too long or began too late (`LONGEST` in conftest.py)."""

from __future__ import annotations

import time
from collections import Counter

import pytest

SHOWN = 12


class Balance:
    def __init__(self) -> None:
        self.began = time.time()
        self.seconds = Counter[str]()
        self.until: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The process of the reports; xdist puts the group after the test's name.
        process, group = report.node.gateway.id, report.nodeid.rpartition("@")[2]
        self.seconds[group] += report.stop - report.start
        self.until[process] = max(report.stop, self.until.get(process, 0.0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_sep("=", "processes and their longest groups, in seconds")
        ends = sorted(self.until.items(), key=lambda each: -each[1])
        terminalreporter.write_line(", ".join(f"{name} until {end - self.began:.0f}" for name, end in ends))
        longest = self.seconds.most_common(SHOWN)
        terminalreporter.write_line(", ".join(f"{group} {seconds:.0f}" for group, seconds in longest))
