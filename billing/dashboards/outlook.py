"""The current month as one sum: what it has cost day after day, where the forecast ends, and the budget where one applies to
all of it. `steps.forecast` computes the forecast; this module draws it."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from billing import periods
from billing.budgets.access import Shown
from billing.budgets.figures import Figures
from portal.pages.charts import Chart, Line, draw

# A budget is drawn up to this many times what is spent or expected.
BEYOND = 4


@dataclass(frozen=True)
class Outlook:
    """`used_up` is the day on which the budget is used up at this pace, or was. `is_beyond`: the chart leaves the
    budget out."""

    figures: Figures
    budget: Shown | None
    chart: Chart
    used_up: dt.date | None
    is_beyond: bool = False

    @property
    def is_over(self) -> bool:
        """True if the budget is used up already."""
        return self.budget is not None and self.budget.level == "over"


def outlook(
    days: Sequence[tuple[dt.datetime, Decimal]], figures: Figures, budget: Shown | None, now: dt.datetime
) -> Outlook:
    """`days` is the cost of each day of the month that has begun, in order."""
    month = periods.month(now)
    length, at = (month.until - month.since).days, (now - month.since) / periods.DAY
    so_far = [(0.0, 0.0)]
    for since, cost in days:
        end = min((since - month.since) / periods.DAY + 1, at)
        so_far.append((end, so_far[-1][1] + float(cost)))
    spent, whole = so_far[-1][1], float(figures.forecast)
    rest = [float(day) for day in range(int(at) + 1, length + 1)]
    expected = [so_far[-1], *((day, spent + (whole - spent) * (day - at) / (length - at)) for day in rest)]
    lines = [Line("Spent", so_far), Line("Forecast", expected)]
    used_up, is_beyond = None, False
    if budget:
        amount = float(budget.budget.amount)
        # Its line would press the others flat.
        is_beyond = amount > BEYOND * max(spent, whole)
        if not is_beyond:
            lines.append(Line("Budget", [(day, amount) for day, _ in (*so_far, *expected[1:])]))
        reached = next((day for day, cost in (*so_far, *expected) if cost >= amount), None)
        if reached is not None:
            used_up = month.since.date() + (math.ceil(reached) - 1) * periods.DAY
    chart = draw(f"Cost of {now:%B}", lines, x_label="day", across=(0.0, float(length)), from_zero=True)
    return Outlook(figures, budget, chart, used_up, is_beyond)
