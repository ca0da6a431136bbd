"""The current month as one sum, with its forecast and its budget."""

import datetime as dt
import json
from decimal import Decimal

import pytest

from billing.budgets.access import Shown
from billing.budgets.figures import Figures
from billing.budgets.models import Budget
from billing.dashboards.outlook import outlook
from billing.models import Price
from tests.billing.dashboards.test_usage import HOUR, use
from tests.clock import stop_the_clock

# Noon of the tenth of a month of thirty days: ten days have begun, and 20.5 are left.
NOON = dt.datetime(2026, 11, 10, 12, tzinfo=dt.UTC)
DAYS = [(dt.datetime(2026, 11, day, tzinfo=dt.UTC), Decimal(10)) for day in range(1, 10)]
DAYS.append((dt.datetime(2026, 11, 10, tzinfo=dt.UTC), Decimal(5)))
FIGURES = Figures(spent=Decimal(95), forecast=Decimal(300), per_day=Decimal(10))


def budget(amount: int) -> Shown:
    return Shown(Budget(amount=Decimal(amount)), FIGURES, (), NOON)


def lines(found) -> dict[str, list[tuple[float, float]]]:
    return {
        line["label"]: list(zip(line["x"], line["y"], strict=True)) for line in json.loads(found.chart.data)["lines"]
    }


def test_the_forecast_goes_on_where_the_month_stands_and_ends_with_it():
    drawn = lines(outlook(DAYS, FIGURES, None, NOON))
    assert list(drawn) == ["Spent", "Forecast"]
    assert drawn["Spent"][:3] == [(0, 0), (1, 10), (2, 20)]
    assert drawn["Spent"][-1] == drawn["Forecast"][0] == (9.5, 95)
    assert drawn["Forecast"][1] == (10, 100)
    assert drawn["Forecast"][-1] == (30, 300)


@pytest.mark.parametrize(
    ("amount", "day"), [(95, 10), (90, 9), (91, 10), (100, 10), (101, 11), (300, 30), (301, None), (5, 1)]
)
def test_a_budget_names_the_day_on_which_it_is_used_up(amount, day):
    found = outlook(DAYS, FIGURES, budget(amount), NOON)
    assert found.used_up == (dt.date(2026, 11, day) if day else None)
    assert found.is_over == (amount <= 95)
    assert {y for _, y in lines(found)["Budget"]} == {amount}


def test_a_budget_far_above_does_not_press_the_lines_flat():
    assert "Budget" in lines(outlook(DAYS, FIGURES, budget(1200), NOON))
    found = outlook(DAYS, FIGURES, budget(1201), NOON)
    assert found.is_beyond
    assert list(lines(found)) == ["Spent", "Forecast"]


def test_the_last_second_of_a_month_has_no_rest():
    last = dt.datetime(2026, 11, 30, 23, 59, 59, tzinfo=dt.UTC)
    days = [(dt.datetime(2026, 11, day, tzinfo=dt.UTC), Decimal(1)) for day in range(1, 31)]
    drawn = lines(outlook(days, Figures(Decimal(30), Decimal(30), per_day=Decimal(1)), None, last))
    assert drawn["Forecast"][-1] == (30, 30)


def test_what_has_no_price_shows_no_cost_and_leads_administrators_to_the_prices(client, people, monkeypatch):
    use(people.ops, stop_the_clock(monkeypatch) - dt.timedelta(hours=2), HOUR)
    client.force_login(people.root)
    page = client.get("/billing").content.decode()
    assert '<a href="/admin/prices">no price yet</a>' in page
    assert '<span title="It costs nothing until it has a price.">–</span>' in page
    client.force_login(people.alice)
    page = client.get("/billing").content.decode()
    assert "no price yet" in page
    assert "/admin/prices" not in page


def test_the_page_of_an_appcode_shows_its_budget_and_that_of_several_says_how_far_each_is(
    client, people, monkeypatch
):  # fmt: skip
    now = stop_the_clock(monkeypatch)
    Price.objects.create(sku="gpu", per_hour=Decimal("1.5"), valid_from=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    for appcode in (people.ops, people.flight):
        use(appcode, now - dt.timedelta(hours=2), HOUR)
    mine = Budget.objects.create(appcode=people.ops, amount=Decimal("1.00"), set_at=now)
    client.force_login(people.alice)
    page = client.get("/billing/ops-demo").content.decode()
    for words in ("Forecast for the month", "Used up", "was used up on", f"/budgets/{mine.pk}", "&quot;Budget&quot;"):
        assert words in page
    client.force_login(people.root)
    whole = client.get("/billing").content.decode()
    assert "&quot;Budget&quot;" not in whole, "it is the budget of one of the two"
    assert f'class="budget-part is-over" href="/budgets/{mine.pk}"' in whole
    assert f'href="/budgets/new?appcode={people.flight.code}"' in whole
    assert 'href="/budgets/new?appcode=ops-demo"' not in whole, "it has one"
    assert "&quot;Budget&quot;" in client.get("/billing?appcode=ops-demo").content.decode()
    Budget.objects.all().delete()
    client.force_login(people.alice)
    assert 'href="/budgets/new?appcode=ops-demo"' in client.get("/billing").content.decode()
    client.force_login(people.bob)
    shown = client.get("/billing").content.decode()
    assert "ops-demo" in shown
    assert "/budgets/new" not in shown
    assert "/admin/prices" not in shown
    past = client.get("/billing?from=2026-01-01&to=2026-01-31").content.decode()
    assert "Forecast" not in past
