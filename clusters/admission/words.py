"""The sentences for verdicts and for what became of runs, for people: what happens, what is needed, what is free, and what to do.
Pure. They are made where somebody reads them, from a code and its values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping

from clusters.admission.codes import Code, Values
from clusters.admission.decision import Verdict
from clusters.admission.demand import GPU, PARTS, short

SMALLER = "Choose a smaller flavor."
SOON = "It starts as soon as enough are free."


def sentence(verdict: Verdict, notes: str = "") -> str:
    """`notes`: sentences on why nodes take no tasks."""
    return sentence_of(verdict.code, {**verdict.values, "notes": notes})


def sentence_of(code: Code, values: Values) -> str:
    """`values` are those of a verdict, and `notes`: sentences on nodes that take no tasks. `said`: the whole sentence, in the
    words of somebody else."""
    found = _Values(values)
    if said := found.text("said"):
        return said
    closed = f" {found.text('notes')}" if found.text("notes") and code is not Code.NO_NODES else ""
    return f"{_WORDS[code](found)}{_latest(found)}{closed}"


def must_add(verdict: Verdict) -> str:
    """What would have to be added to the cloud for a run that can never start as it is, or ""."""
    found = _Values(verdict.values)
    if verdict.code is Code.OVER_POOL and found.text("resource"):
        return f"An administrator would have to add {_said(found.text('resource'), found['needed'] - found['most'])}."
    if verdict.code is Code.OVER_NODE and found.text("resource") and found["nodes"]:
        return f"An administrator would have to add a node with {_amount(found, 'needed')} for tasks."
    return "An administrator would have to add nodes that can have it." if verdict.code in _LACKS_NODES else ""


_LACKS_NODES = frozenset({Code.OVER_POOL, Code.OVER_NODE, Code.NO_SUCH_GPU})


def _latest(values: _Values) -> str:
    """It holds unless somebody with more right comes."""
    said = ""
    if values["taken_from"]:
        who = "a run that has less right to its GPUs may have to give them back for it"
        if values["runs"] > 1:
            who = f"{values['runs']} runs that have less right to their GPUs may have to give them back for it"
        said = f" From {_clock(values['taken_from'])} on, {who}."
    if values["latest"]:
        at = f"at {_clock(values['latest'])} at the latest"
        said = f"{said} By the time limits of the runs there, it starts {at}, unless runs with more right come."
    return said


def _clock(seconds: int) -> str:
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M} UTC"


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
        return f"{self['free']} of {self['total']}{model}{self.where} are free{before}"

    @property
    def where(self) -> str:
        """ " with the label pool=a100", or ""."""
        return f" with {_labels(self.text('labels'))}" if self.text("labels") else ""

    def units(self, count: int) -> str:
        """ "2 GPUs", "7 mig-1g.10gb"."""
        return _units(count, self.text("unit"))

    @property
    def asked(self) -> str:
        """All GPUs and slices that it needs."""
        slices = [_units(self["slices"], self.text("unit") or PARTS)] if self["slices"] else []
        return " and ".join([*([_gpus(self["gpus"])] if self["gpus"] or not slices else []), *slices])


def _fits(values: _Values) -> str:
    if not (values["gpus"] or values["slices"]):
        return "It asks for no GPU."
    right = ""
    if values["borrowed"]:
        right = " It borrows them, beyond the quota: they may be taken back when others need theirs."
    if values["spare"]:
        right = " They are spare: they may be taken back as soon as others need them."
    free = ", which are free" if values["gpus"] and values["slices"] else f", and {values.free}"
    return f"It needs {values.asked}{free}.{right}"


def _quota(values: _Values) -> str:
    left = max(0, values["quota"] - values["held"])
    place = f" It is number {values['place']} in the queue of its appcode." if values["place"] else ""
    if values["gpus"] <= left:
        place = f"{place} It would fit, and the runs before it come first."
    of = (
        f"the {values['quota']} that its appcode may hold, {_borrowing(values)},"
        if values["borrow"]
        else values["quota"]
    )
    return f"It waits for quota: it needs {_gpus(values['gpus'])}, and {left} of {of} are free.{place}"


def _over_limit(values: _Values) -> str:
    most = f"the quota is {values['quota']}"
    if values["borrow"]:
        most = f"its appcode may hold {values['quota']} at most, {_borrowing(values)}"
    return f"It needs {_gpus(values['gpus'])}, and {most}. Ask for fewer, or for a larger quota."


def _borrowing(values: _Values) -> str:
    return f"{values['quota'] - values['borrow']} of its quota and {values['borrow']} borrowed"


def _behind(values: _Values) -> str:
    return "There is room for it, which is kept for runs that wait before it. It starts after them."


def _taking_back(values: _Values) -> str:
    if values["runs"]:
        who = "A run that borrowed its GPUs, or is of a lower class, gives them back for it"
        if values["runs"] > 1:
            who = f"{values['runs']} runs that borrowed their GPUs, or are of a lower class, give them back for it"
        return f"It needs {values.asked}. {who}; it starts as soon as they are free{_gone(values)}."
    return (
        f"It needs {values.asked}, which runs that are ending still hold. "
        f"It starts as soon as they are free{_gone(values)}."
    )


def _gone(values: _Values) -> str:
    """They may save before they end, for as long as their definitions say."""
    return f", at {_clock(values['gone'])} at the latest" if values["gone"] else ""


def _placing(values: _Values) -> str:
    if not (values["gpus"] or values["slices"]):
        return "Its tasks are being placed."
    return f"Its {values.asked} {'is' if values['gpus'] + values['slices'] == 1 else 'are'} being placed."


def _placed(values: _Values) -> str:
    names, more = values.text("names"), values["more"]
    if not names:
        return "It has its places; its tasks may go to any node."
    return f"It has its places on {names}{f' and {more} more nodes' if more else ''}."


def _whole(values: _Values) -> str:
    took = f"{_span(values['seconds'])} after it got its places"
    return f"All tasks that need each other have nodes, {took}. It is billed from then on."


def _started(values: _Values) -> str:
    return f"It runs, {_span(values['seconds'])} after it was admitted."


def _given_back(values: _Values) -> str:
    why = (
        "some of its tasks lost their nodes and found no room there"
        if values["whole"]
        else "not all of its tasks got a node there"
    )
    blocked = f" {values.text('blocked')}" if values.text("blocked") else ""
    return f"It gave its places back: {why}.{blocked} It waits again, in its old order."


def _taken_back(values: _Values) -> str:
    what = f"Its {_gpus(values['gpus'])}" if values["gpus"] else "Its places"
    were = "was" if values["gpus"] == 1 else "were"
    if taker := values.text("taker"):
        why = f"{taker}, which is of a higher class, needs them"
    elif values["spare"]:
        why = "another appcode needs them, and this run is spare"
    elif values["borrowed"]:
        why = "another appcode needs them inside its quota, and this run had borrowed them"
    else:  # Of a release that did not keep it.
        why = "a run that comes before it needs them"
    # Releases before this did not keep what was lost.
    lost = f" {_loss(values)}" if values.text("seconds") else ""
    return f"{what} {were} taken back: {why}.{lost} It waits again, in its old place."


def loss(values: Values) -> str:
    """What a run loses that is taken back: `gpus`, `seconds`, and whether these count from a checkpoint (`saved`)."""
    return _loss(_Values(values))


def _loss(values: _Values) -> str:
    seconds = values["seconds"]
    lost = f"{_gpus(values['gpus'])} × {_span(seconds - seconds % 60 if seconds > 60 else seconds)}"
    return (
        f"It loses {lost}, since its last checkpoint."
        if values["saved"]
        else f"It may lose {lost}: no checkpoint since it began is known."
    )


def _input(values: _Values) -> str:
    ended = "ended" if values["always"] else "succeeded"
    return f"It reads the output of run {values.text('cluster')}/{values['run']} and starts when that has {ended}."


def _hook(values: _Values) -> str:
    return f"It waits for its hook {values.text('hook')}."


def _not_before(values: _Values) -> str:
    return f"It starts at {values.text('at')[:16].replace('T', ' ')} UTC, as was asked for."


def _fixed(words: str) -> Callable[[_Values], str]:
    return lambda values: words


def _short_of_gpus(values: _Values) -> str:
    return f"It needs {values.units(values['needed'])}; {values.free}. {SOON}"


def _window(values: _Values) -> str:
    are = "are" if values["several"] else "is"
    whom = " for its appcode" if values["mine"] else " for another appcode"
    what = f"reserved{whom}" if values["reserved"] else "closed for maintenance"
    if values["begun"]:
        return f"{values.text('nodes')} {are} {what} until {values.text('until')}. It starts then, or when other nodes are free."
    long = "its time limit is too long for that" if values["has_limit"] else "it has no time limit"
    when = f"from {values.text('from')} to {values.text('until')}"
    then = " It may start there then." if values["mine"] else ""
    offer = (
        f" With a time limit of {duration(values['offer_limit'])} it would start now." if values["offer_limit"] else ""
    )
    return f"{values.text('nodes')} {are} {what} {when}, and {long}.{then}{offer}"


def _no_nodes(values: _Values) -> str:
    notes = values.text("notes")
    return (
        f"No machine takes tasks now: {notes}" if notes else "No machine has reported in yet; it starts when one does."
    )


def _no_such_gpu(values: _Values) -> str:
    if outside := _outside(values):
        return outside
    kind = f"GPUs of the model {values.text('model')}" if values.text("model") else "GPUs"
    kind = values.text("unit") or kind
    return f"No node{values.where} has {kind}, which {_one(values)} needs. Choose another flavor."


def _outside(values: _Values) -> str:
    """Why it may go to no node that could have it, or ""."""
    if values.text("no_label"):
        return f"No node has {_labels(values.text('no_label'))}, which {_one(values)} needs. Choose another flavor."
    if values.text("taint"):
        return (
            f"The nodes{values.where} that could take {_one(values)} are kept for others by the taint {values.text('taint')}, "
            "which its flavor does not tolerate. Choose another flavor."
        )
    return ""


def _fragmented(values: _Values) -> str:
    count, fitting, size = values["count"], values["fitting"], values["size"]
    if not size:
        return f"It needs room for {count} × {values.text('role')}, and there is room for {fitting} now. {SOON}"
    kind = f"{values.text('model')} GPU" if values.text("model") else "GPU"
    needs = values.units(size) if values.text("unit") else f"{size} {kind}{'' if size == 1 else 's'}"
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
        are, where = "is" if _is_one(values) else "are", " where its GPUs are" if values["size"] else ""
        most = f"at most {_amount(values, 'most')} {are} free{where}"
        rest = f", as {values.ahead} some" if values["ahead"] else ""
        return f"It needs {_amount(values, 'needed')} on one node for {_one(values)}, and {most}{rest}. {SOON}"
    return (
        f"It needs room for {values['count']} × {values.text('role')} ({_what(values)} each), and there is room for "
        f"{values['fitting']} now. {SOON}"
    )


def _over_node(values: _Values) -> str:
    if outside := _outside(values):
        return outside
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


def _span(seconds: int) -> str:
    """ "20 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 60:
        return f"{seconds} s"
    large, unit, small, less = (60, "min", 1, "s") if seconds < 3600 else (3600, "h", 60, "min")
    rest = seconds % large // small
    return f"{seconds // large} {unit}" + (f" {rest} {less}" if rest else "")


def _one(values: _Values) -> str:
    return f"one {values.text('role')}"


def _what(values: _Values) -> str:
    parts = {
        values.text("unit") or "gpus": values["size"],
        "cpu_milli": values["cpu_milli"],
        "memory_mb": values["memory_mb"],
    }
    return ", ".join(_said(name, amount) for name, amount in parts.items() if amount)


def _is_one(values: _Values) -> bool:
    return _amount(values, "most").startswith(("1 ", "0."))


def _amount(values: _Values, name: str) -> str:
    return _said(values.text("resource"), values[name])


def _labels(text: str) -> str:
    return f"the label{'s' if ', ' in text else ''} {text}"


def _said(resource: str, amount: int) -> str:
    return _AMOUNTS[resource](amount) if resource in _AMOUNTS else _units(amount, resource)


def _units(count: int, unit: str) -> str:
    """Of an extended resource."""
    if unit.startswith("hugepages-"):
        return f"{count / 2**30:.4g} GiB of {unit}"
    if unit in ("", GPU):
        return _gpus(count)
    return f"{count} {short(unit)}{'s' if unit == PARTS and count != 1 else ''}"


def duration(seconds: int) -> str:
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
    Code.PLACED: _placed,
    Code.WHOLE: _whole,
    Code.STARTED: _started,
    Code.GIVEN_BACK: _given_back,
    Code.TAKEN_BACK: _taken_back,
    Code.QUOTA: _quota,
    Code.BEHIND: _behind,
    Code.TAKING_BACK: _taking_back,
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
    Code.TURN: _fixed("It waits for its turn."),
    Code.INPUT: _input,
    Code.HOOK: _hook,
    Code.NOT_BEFORE: _not_before,
    # Those that quote others' words mostly have them.
    Code.BUDGET: _fixed("A budget of its appcode is used up."),
    Code.DISABLED: _fixed("Its appcode cannot be used now."),
    Code.EXPIRED: _fixed("Its appcode has expired."),
    Code.UNREACHABLE: _fixed("Its cloud cannot do it now and is asked again."),
    Code.CLOUD: _fixed("Its cloud holds it back."),
}
