"""The sentences for verdicts, for people: what happens, what is needed, what is free, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clusters.admission.codes import Code
from clusters.admission.decision import Verdict

SMALLER = "Choose a smaller flavor."
SOON = "It starts as soon as enough are free."


def sentence(verdict: Verdict, notes: str = "") -> str:
    """`notes`: sentences on why nodes take no tasks. Raises KeyError for codes that `decide` does not give."""
    values = _Values({**verdict.values, "notes": notes})
    return f"{_WORDS[verdict.code](values)}{_offer(values)}"


def _offer(values: _Values) -> str:
    count, role = values["offer"], values.text("offer_role")
    return f" With {count} × {role} it would start now." if count else ""


class _Values:
    def __init__(self, values: Mapping[str, int | str]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> int:
        return int(self._values.get(name, 0))

    def text(self, name: str) -> str:
        return str(self._values.get(name, ""))

    @property
    def ahead(self) -> str:
        return "1 run before it takes" if self["ahead"] == 1 else f"{self['ahead']} runs before it take"

    @property
    def free(self) -> str:
        """ "3 of 8 H100 are free, as 2 runs before it take 4"."""
        model = f" {self.text('model')}" if self.text("model") else ""
        before = f", as {self.ahead} {self['before']}" if self["before"] else ""
        return f"{self['free']} of {self['total']}{model} are free{before}"


def _fits(values: _Values) -> str:
    return f"It needs {_gpus(values['gpus'])}, and {values.free}." if values["gpus"] else "It asks for no GPU."


def _quota(values: _Values) -> str:
    left = max(0, values["quota"] - values["held"])
    return f"It waits for quota: it needs {_gpus(values['gpus'])}, and {left} of {values['quota']} are free."


def _over_limit(values: _Values) -> str:
    return (
        f"It needs {_gpus(values['gpus'])}, and the quota is {values['quota']}. Ask for fewer, or for a larger quota."
    )


def _behind(values: _Values) -> str:
    return "There is room for it, which is kept for runs that wait before it. It starts after them."


def _placing(values: _Values) -> str:
    return f"Its {_gpus(values['gpus'])} are being placed."


def _short_of_gpus(values: _Values) -> str:
    return f"It needs {_gpus(values['needed'])}; {values.free}. {SOON}"


def _window(values: _Values) -> str:
    are = "are" if values["several"] else "is"
    whom = " for its appcode" if values["mine"] else " for another appcode"
    what = f"reserved{whom}" if values["reserved"] else "closed for maintenance"
    if values["begun"]:
        return f"{values.text('nodes')} {are} {what} until {values.text('until')}. It starts then, or when other nodes are free."
    long = "its time limit is too long for that" if values["has_limit"] else "it has no time limit"
    when = f"from {values.text('from')} to {values.text('until')}"
    then = " It may start there then." if values["mine"] else ""
    offer = f" With a time limit of {_time(values['offer_limit'])} it would start now." if values["offer_limit"] else ""
    return f"{values.text('nodes')} {are} {what} {when}, and {long}.{then}{offer}"


def _no_nodes(values: _Values) -> str:
    notes = values.text("notes")
    return (
        f"No machine takes tasks now: {notes}" if notes else "No machine has reported in yet; it starts when one does."
    )


def _no_such_gpu(values: _Values) -> str:
    kind = f"GPUs of the model {values.text('model')}" if values.text("model") else "GPUs"
    return f"No node has {kind}, which {_one(values)} needs. Choose another flavor."


def _fragmented(values: _Values) -> str:
    count, fitting, size = values["count"], values["fitting"], values["size"]
    if not size:
        return f"It needs room for {count} × {values.text('role')}, and there is room for {fitting} now. {SOON}"
    kind = f"{values.text('model')} GPU" if values.text("model") else "GPU"
    needs = f"{size} {kind}{'' if size == 1 else 's'}"
    advice = "It starts when enough whole nodes are free; tasks with fewer GPUs may start earlier."
    if fitting:
        return (
            f"It needs {count} × {needs}, each on one node; {fitting} of these find room now. {values.free}, in blocks that are "
            f"too small. {advice}"
        )
    many = f" for each of {count} tasks" if count > 1 else ""
    beside = " beside its other tasks" if values["roles"] > 1 else ""
    return f"It needs {needs} on one node{many}; {values.free}, but at most {values['block']} on one node{beside}. {advice}"


def _resources(values: _Values) -> str:
    if values.text("resource") and not values["fitting"]:
        most = f"at most {_amount(values, 'most')} are free{' where its GPUs are' if values['size'] else ''}"
        rest = f", as {values.ahead} some" if values["ahead"] else ""
        return f"It needs {_amount(values, 'needed')} on one node for {_one(values)}, and {most}{rest}. {SOON}"
    return (
        f"It needs room for {values['count']} × {values.text('role')} ({_what(values)} each), and there is room for "
        f"{values['fitting']} now. {SOON}"
    )


def _over_node(values: _Values) -> str:
    if not values["nodes"]:
        return f"No node takes {_one(values)}, which needs no GPU. Choose a flavor with GPUs."
    if not values.text("resource"):
        return f"No node has {_what(values)} together for {_one(values)}. {SMALLER}"
    more = f"; the largest has {_amount(values, 'most')}. Choose a smaller flavor and more tasks."
    return f"{_one(values).capitalize()} needs {_amount(values, 'needed')} on one node{more}"


def _over_pool(values: _Values) -> str:
    fewer = "Choose fewer tasks or a smaller flavor."
    if values.text("resource"):
        return (
            f"It needs {_amount(values, 'needed')} at one time; all machines together have {_amount(values, 'most')} for tasks. "
            f"{fewer}"
        )
    return (
        f"{values['count'] - values['fitting']} of its tasks ({values.text('role')}, {_what(values)} each) find no place beside "
        f"the others, even when all machines are empty. {fewer}"
    )


def _one(values: _Values) -> str:
    return f"one {values.text('role')}"


def _what(values: _Values) -> str:
    parts = {"gpus": values["size"], "cpu_milli": values["cpu_milli"], "memory_mb": values["memory_mb"]}
    return ", ".join(_AMOUNTS[name](amount) for name, amount in parts.items() if amount)


def _amount(values: _Values, name: str) -> str:
    return _AMOUNTS[values.text("resource")](values[name])


def _time(seconds: int) -> str:
    days, hours, minutes = seconds // 86400, seconds % 86400 // 3600, seconds % 3600 // 60
    parts = ((days, "d"), (hours, "h"), (minutes, "min"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


_AMOUNTS: Mapping[str, Callable[[int], str]] = {
    "gpus": _gpus,
    "cpu_milli": lambda units: "1 CPU" if units == 1000 else f"{units / 1000:.10g} CPUs",
    "memory_mb": lambda units: f"{units / 1024:.4g} GiB of memory",
}


_WORDS: Mapping[Code, Callable[[_Values], str]] = {
    Code.FITS: _fits,
    Code.QUOTA: _quota,
    Code.BEHIND: _behind,
    Code.PLACING: _placing,
    Code.GPUS: _short_of_gpus,
    Code.RESOURCES: _resources,
    Code.FRAGMENTED: _fragmented,
    Code.WINDOW: _window,
    Code.NO_NODES: _no_nodes,
    Code.OVER_LIMIT: _over_limit,
    Code.NO_SUCH_GPU: _no_such_gpu,
    Code.OVER_NODE: _over_node,
    Code.OVER_POOL: _over_pool,
}
