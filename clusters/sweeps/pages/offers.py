"""What the form of a sweep offers: parameters that the cluster has already, and metrics that its last run recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from clusters.frameworks import FRAMEWORKS
from clusters.manifest.cluster import ClusterSpec
from clusters.manifest.env import check_env_name
from clusters.results.models import RunMetric
from clusters.results.values import is_judged, is_less_better, options
from clusters.runs.models import Cluster, Run
from clusters.scalars.events import rank
from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.pages.form import literal
from clusters.sweeps.parameters import written

# Parameters that are offered, and characters of a value.
MOST, MOST_CHARACTERS = 24, 40
# Variables that nobody tunes.
_SECRET = re.compile(r"(?i)token|secret|passw|credential|key$")
# Numbers below 1 that are no share of something.
_SCALED = re.compile(r"(?i)(?:^|_)lr(?:$|_|\d)|learning_?rate|decay|(?:^|_)eps")


@dataclass(frozen=True)
class Offer:
    """A parameter with its value in the cluster. A click replaces `find` in the command by `put`; empty for a variable."""

    name: str
    now: str
    find: str = ""
    put: str = ""

    @property
    def row(self) -> str:
        """The values of its row, as JSON: a range around the value."""
        return json.dumps({"name": self.name, **suggested(self.name, self.now)})


def suggested(name: str, now: str) -> dict[str, str]:
    """A range around a value, for a user to correct: a decade to either side, 0 to 1, or a choice."""
    value = literal(now)
    if isinstance(value, bool):
        return {"type": "choice", "values": "true, false"}
    if isinstance(value, str):
        return {"type": "choice", "values": now}
    kind = "int" if isinstance(value, int) else "float"
    if kind == "int" and "seed" in name.lower():
        return {"type": kind, "low": "0", "high": "9"}
    if not 0 < value < 1e9:
        return {"type": kind}
    if kind == "int":
        return {"type": kind, "low": str(max(1, int(value) // 4)), "high": str(int(value) * 4), "log": "on"}
    if 0.1 < value < 1 and not _SCALED.search(name):
        return {"type": kind, "low": "0", "high": "1"}
    return {"type": kind, "low": f"{value / 10:g}", "high": f"{value * 10:g}", "log": "on"}


def offers(template: ClusterSpec) -> list[Offer]:
    """The variables of a cluster, the parameters of its notebook, and the options of its command that have a short value."""
    found = {name: Offer(name, text) for name, text in template.env.items()}
    if template.notebook:
        values = template.notebook.parameters
        found |= {name: Offer(name, written(now)) for name, now in values.items() if isinstance(now, str | int | float)}
    found |= {each.name: each for each in _options(template.command)}
    taken = FRAMEWORKS[template.framework].reserved_env
    return [each for each in found.values() if each.name not in taken and _is_tunable(each)][:MOST]


def left_alone(spec: SweepSpec) -> list[Offer]:
    """Options of the command with a fixed value and the name of a parameter, which therefore changes nothing there."""
    command = spec.template.command
    fixed = (each for each in _options(command) if each.name in spec.parameters)
    return [each for each in fixed if not re.search(rf"\{{{each.name}\}}|\${each.name}\b", command)]


def _options(command: str) -> Iterator[Offer]:
    for option, now in options(command):
        name = re.sub(r"[.-]", "_", option)
        places = re.findall(
            rf"(?<!\S)(?:--{re.escape(option)}(?:=|\s+)|{re.escape(option)}=){re.escape(now)}(?!\S)", command
        )
        if len(places) == 1 and now:
            yield Offer(name, now, places[0], f"{places[0].removesuffix(now)}{{{name}}}")


def _is_tunable(offer: Offer) -> bool:
    try:
        check_env_name(offer.name)
    except ValueError:
        return False
    is_plain = 0 < len(offer.now) <= MOST_CHARACTERS and not re.search(r"[${},;=\s]", offer.now)
    return is_plain and not _SECRET.search(offer.name)


def metrics_of(cluster: Cluster) -> list[tuple[str, str]]:
    """The metrics of the last run that has any, losses and accuracies first, each with the direction that its name tells."""
    last = Run.objects.filter(cluster=cluster, numbers__isnull=False).order_by("-number").values("pk")[:1]
    names = RunMetric.objects.filter(run__in=last).values_list("metric__name", flat=True)
    judged = sorted(filter(is_judged, names), key=lambda name: (rank(name), name))
    return [(name, "minimize" if is_less_better(name) else "maximize") for name in judged]
