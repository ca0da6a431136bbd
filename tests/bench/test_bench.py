"""Each part of `make bench` still runs. Its smallest size measures no speed; it only shows that the called APIs still exist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import NAMES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.e2e
@pytest.mark.timeout(1600)
@pytest.mark.xdist_group("bench")
def test_every_part_measures_something(tmp_path: Path) -> None:
    # The benchmark starts a portal of its own, so it must not see the servers of these tests.
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PORTAL_", "LOCAL_", "DATABASE", "REDIS"))
    }
    env.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--smallest", "--output", tmp_path / "bench.json"],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stderr.count("Measuring: ") == len(NAMES), done.stderr[-6000:]
    assert len(json.loads((tmp_path / "bench.json").read_text())) > 60
