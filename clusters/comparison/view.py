"""A comparison as a value: what its address says, and the address that says it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

# For charts without a script.
AXES = {"step": "Step", "time": "Relative time"}
SMOOTH = {"0": "None", "0.6": "Some", "0.9": "Much"}
# Characters of a text and of a list of runs, and metrics that a person lays into one chart.
MAX_TEXT, MAX_RUNS, MAX_JOINED = 200, 2000, 20


@dataclass(frozen=True)
class View:
    """What is compared, and how. `runs` are names (`train/3`), maybe of no run. `equal`: with rows that are the same in all.
    `apart`: names stay apart that seem to be those of one metric. `joined` are metrics in one chart, `find` are words in names of
    charts, `at` is the last step of images. `plain`: charts and images are in the page, for browsers without JavaScript. `brief`:
    charts as they stand above the table of results, of `metrics` if it shows any."""

    runs: tuple[str, ...] = ()
    axis: str = "step"
    smooth: str = "0"
    equal: bool = False
    apart: bool = False
    plain: bool = False
    brief: bool = False
    find: str = ""
    at: int | None = None
    joined: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    @classmethod
    def read(cls, said: Mapping[str, Sequence[str]]) -> View:
        """From the parameters of an address, each with all of its values."""

        def one(name: str) -> str:
            return (said.get(name) or [""])[-1].replace("\0", "").strip()[:MAX_TEXT]

        names = (name for text in said.get("runs", ()) for name in text[:MAX_RUNS].split(",") if name)
        axis, smooth, at = one("x"), one("smooth"), one("at")
        return cls(
            runs=tuple(dict.fromkeys(names)),
            axis=axis if axis in AXES else "step", smooth=smooth if smooth in SMOOTH else "0",
            equal="all" in said, apart="apart" in said, plain="plain" in said, brief="brief" in said, find=one("find"),
            at=int(at) if at.isascii() and at.removeprefix("-").isdecimal() and len(at) < 20 else None,
            joined=tuple(dict.fromkeys(said.get("join", ())))[:MAX_JOINED], metrics=tuple(said.get("metric", ())),
        )  # fmt: skip

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The parameters of its address, in a fixed order."""
        switches = (("all", self.equal), ("apart", self.apart), ("plain", self.plain), ("brief", self.brief))
        simple = (
            ("runs", ",".join(self.runs)), ("x", self.axis if self.axis != "step" else ""),
            ("smooth", self.smooth if self.smooth != "0" else ""), *((name, "1") for name, is_on in switches if is_on),
            ("find", self.find), ("at", "" if self.at is None else str(self.at)),
        )  # fmt: skip
        several = (("join", self.joined), ("metric", self.metrics))
        return [*(pair for pair in simple if pair[1]), *((key, name) for key, names in several for name in names)]

    @property
    def query(self) -> str:
        return urlencode(self.pairs, safe="/,", quote_via=quote)

    def but(self, **changes: object) -> View:
        return replace(self, **changes)  # type: ignore[arg-type]
