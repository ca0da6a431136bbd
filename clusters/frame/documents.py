"""What REST documents of several rooms are made of."""

from __future__ import annotations

from typing import Literal

Phase = Literal["Queued", "Starting", "Running", "Succeeded", "Failed", "Stopped"]
