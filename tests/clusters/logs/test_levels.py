"""What lines of logs are taken for: errors, warnings, or what frameworks say on every start."""

from __future__ import annotations

import re

import pytest

from clusters.logs import levels

IS_ERROR, IS_FORM, IS_WARNING, IS_QUIET = map(
    re.compile, (levels.ERROR, levels.ERROR_FORMS, levels.WARNING, levels.QUIET)
)


def level(line: str) -> str:
    """As static/clusters/logs.js decides it."""
    if IS_QUIET.search(line):
        return "quiet"
    if IS_ERROR.search(line) or IS_FORM.search(line):
        return "error"
    return "warning" if IS_WARNING.search(line) else ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("E0000 00:00:1796064664.329939       2 executor.cc:31] No kernel image is available", "error"),
        ("2026-11-30 10:00:00.123456: E tensorflow/core/framework/op.cc:31] Out of memory", "error"),
        ("ERROR:root:the disk is full", "error"),
        ("Traceback (most recent call last):", "error"),
        ('  File "/code/train.py", line 3, in <module>', "error"),
        ("KeyError: 'loss'", "error"),
        ("W0000 00:00:1796064664.329939       2 op_level_cost.cc:699] Error in PredictCost", "error"),
        ("W0000 00:00:1796064664.329939       2 cost.cc:699] no cost for this op", "warning"),
        ("WARNING:absl:You are saving your model as HDF5", "warning"),
        ("/lib/x.py:3: UserWarning: slow", "warning"),
        ("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR", "quiet"),
        ("I0000 00:00:1.3       2 cudart_stub.cc:31] Could not find cuda drivers on your machine", "quiet"),
        ("E0000 00:00:1.3       2 cuda_platform.cc:51] failed call to cuInit: INTERNAL: CUDA error", "quiet"),
        ("I0000 00:00:1796064664.329939       2 service.cc:148] XLA service initialized", "quiet"),
        ("step 100: loss = 0.5017, mean error: 0.3", ""),
        ("the forerunner has warned nobody", ""),
        ("Epoch 3/5 of INFO", ""),
    ],
)  # fmt: skip
def test_a_line_has_a_level(line: str, expected: str) -> None:
    assert level(line) == expected
