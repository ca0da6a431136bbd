"""Both themes are readable: every text colour has WCAG AA contrast on every background it is used on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSS = (Path(__file__).parents[2] / "static" / "portal" / "portal.css").read_text()
STATES = ("queued", "starting", "running", "succeeded", "failed", "stopped")
GROUNDS = ("ground", "surface", "raised", "sunken")
PAIRS = [
    *((text, ground, 4.5) for text in ("text", "muted", "accent-text", *STATES) for ground in GROUNDS),
    *(("text", soft, 4.5) for soft in ("error-soft", "warn-soft", "ok-soft", "info-soft", "accent-soft")),
    ("accent-text", "accent-soft", 4.5),
    ("on-accent", "accent", 4.5),
    # Field borders and chart lines are shapes, not text, and need less contrast.
    *(("line-strong", ground, 3.0) for ground in GROUNDS),
    *((f"chart-{n}", ground, 3.0) for n in range(1, 11) for ground in ("ground", "surface")),
]


def colours(theme: str) -> dict[str, str]:
    block = re.search(rf'\[data-scheme="{theme}"\] \{{(.*?)\n\}}', CSS, re.DOTALL)
    assert block
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block[1]))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG 2: (L1 + 0.05) / (L2 + 0.05)."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_can_be_read(theme: str) -> None:
    named = colours(theme)
    low = {
        f"{text} on {ground}": round(contrast(named[text], named[ground]), 2)
        for text, ground, least in PAIRS
        if contrast(named[text], named[ground]) < least
    }
    assert low == {}


def test_both_themes_name_the_same_colours() -> None:
    assert colours("light").keys() == colours("dark").keys()


def test_nothing_is_loaded_from_elsewhere() -> None:
    static = Path(__file__).parents[2] / "static"
    for path in [*static.rglob("*.css"), *static.rglob("*.js")]:
        assert not re.findall(r"https?://(?!www\.w3\.org)", path.read_text()), path
