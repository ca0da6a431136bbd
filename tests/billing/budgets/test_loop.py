"""Budgets: notices and actions follow from real spending, once each, in order, and only after an announcement."""

import datetime as dt
import os
import signal
import threading
from dataclasses import replace
from decimal import Decimal

import pytest
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, connection, connections, transaction
from django.http import Http404
from hypothesis import given
from hypothesis import strategies as st

from billing import extension_points, periods
from billing.budgets import access, actions, loop
from billing.budgets import figures as budgets_figures
from billing.budgets import steps as budgets_steps
from billing.budgets.actions import Asked
from billing.budgets.steps import MARKS, MEASURES, POLICIES, Terms, after, next_steps
from billing.ledger import posting
from billing.metering import record
from billing.metering.segments import PodState
from billing.models import Budget, BudgetStep, Mail, Price
from portal.errors import Conflict, Invalid
from portal.models import Event, OrgNode
from tests.clock import stop_the_clock

START = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
MINUTE, HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)
HUNDRED = Terms(Decimal(100), "stop_all", HOUR)


# Pure functions

terms = st.builds(
    Terms,
    amount=st.integers(1, 200).map(Decimal),
    policy=st.sampled_from(POLICIES),
    countdown=st.integers(1, 180).map(lambda minutes: minutes * MINUTE),
    lifted=st.just(False),
    paused=st.just(False),
)
# A month as the loop sees it: minutes since the last turn, money spent since, and sometimes a change of the budget.
story = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.integers(0, 60).map(Decimal),
        st.one_of(st.none(), terms, st.sampled_from(["lift", "pause"])),
    ),
    max_size=40,
)


@given(terms, story)
def test_a_month_of_any_budget(first, turns):
    now, spent, steps, holds = START, Decimal(0), [], first
    told, announced, lifted = [], {}, False
    for minutes, more, changed in turns:
        now, spent = now + minutes * MINUTE, spent + more
        if isinstance(changed, Terms):
            holds = replace(changed, lifted=lifted, paused=False, set_at=now)
        elif changed == "lift":
            holds, lifted = replace(holds, lifted=True), True
        elif changed == "pause":
            holds = replace(holds, paused=not holds.paused)
        before = {step.kind: step for step in steps}
        if isinstance(changed, Terms):
            told = [mark for mark in told if spent * 100 >= holds.amount * MARKS[mark]]
        changes = next_steps(holds, spent, steps, now)
        steps = after(steps, changes)
        assert next_steps(holds, spent, steps, now) == [], "the same facts give nothing more"
        over = spent >= holds.amount and not holds.paused and not holds.lifted
        for change in changes:
            step = change.step
            if step.kind in MARKS and step.lifted_at:
                assert change.verb == "note"
                assert spent * 100 < holds.amount * MARKS[step.kind]
            elif change.verb in ("note", "tell"):
                assert spent * 100 >= holds.amount * MARKS[step.kind]
                assert not holds.paused
                told.append(step.kind)
            elif change.verb == "announce":
                assert over
                assert step.due_at == now + holds.countdown
                announced[step.kind] = step.due_at
            elif change.verb == "act":
                assert over
                assert announced[step.kind] == before[step.kind].due_at <= now, "never before its announced time"
            else:
                assert change.verb == "take_back"
                assert not over or step.kind not in holds.measures
        assert len(told) == len(set(told)), "each mark is told once, and again only when it was put off"
        assert sum(change.verb == "tell" for change in changes) <= 1
        stand = {step.kind: step for step in steps if step.stands and step.kind in MEASURES}
        if not over:
            assert not stand, "nothing stands without its reason, and after a lift nothing at all"
        order = [kind for kind in MEASURES if kind in stand]
        assert order == list(MEASURES[: len(order)]), "block, then services, then everything"
        assert all(stand[kind].done_at for kind in order[:-1]), "one after the other"
        assert set(stand) <= set(holds.measures)
    month = next_steps(first, Decimal(0), [], periods.month(START).until)
    assert month == [], "the next month begins with nothing"


def test_as_far_as_the_policy_says_and_no_further():
    for policy in POLICIES:
        steps, now = [], START
        for _ in range(10):
            steps, now = after(steps, next_steps(replace(HUNDRED, policy=policy), Decimal(100), steps, now)), now + HOUR
        done = {step.kind for step in steps if step.done_at and step.kind in MEASURES}
        assert done == set(MEASURES[: POLICIES.index(policy)])


def test_nothing_is_done_a_second_early():
    steps = after([], next_steps(HUNDRED, Decimal(100), [], START))
    assert next_steps(HUNDRED, Decimal(100), steps, START + HOUR - dt.timedelta(seconds=1)) == []
    verbs = [(change.verb, change.step.kind) for change in next_steps(HUNDRED, Decimal(100), steps, START + HOUR)]
    assert verbs == [("act", "block"), ("announce", "stop_services")]


def test_several_marks_at_once_are_told_by_one_mail():
    changes = next_steps(replace(HUNDRED, policy="notify"), Decimal(85), [], START)
    assert [(change.verb, change.step.kind) for change in changes] == [("note", "spent_50"), ("tell", "spent_80")]


def forecast(spent, lately, now, *, lasting=0, passing=0):
    money = {day: Decimal(cost) for day, cost in lately.items()}
    return budgets_steps.forecast(Decimal(spent), money, now, lasting=Decimal(lasting), passing=Decimal(passing)).total


def test_a_mark_is_told_again_only_when_the_budget_put_it_off():
    budget = replace(HUNDRED, policy="notify", set_at=START)
    steps = after([], next_steps(budget, Decimal("50.01"), [], START + HOUR))
    # Late news may move the end of a running pod a little earlier, so the sum goes down and up again.
    for spent in ("49.99", "50.02", "49.98", "50.03"):
        changes = next_steps(budget, Decimal(spent), steps, START + 2 * HOUR)
        assert changes == []
    raised = replace(budget, amount=Decimal(200), set_at=START + 3 * HOUR)
    steps = after(steps, next_steps(raised, Decimal("50.03"), steps, START + 3 * HOUR))
    told = next_steps(raised, Decimal(100), steps, START + 4 * HOUR)
    assert [(change.verb, change.step.kind) for change in told] == [("tell", "spent_50")]


def test_a_forecast_goes_on_with_the_mean_of_seven_days():
    # 18.5 days are left, and 6.5 days cost 13.
    noon = dt.datetime(2026, 11, 12, 12, tzinfo=dt.UTC)
    sixth, twelfth = dt.date(2026, 11, 6), dt.date(2026, 11, 12)
    assert forecast(20, {sixth: 10, twelfth: 3}, noon) == 20 + 2 * Decimal("18.5")
    # Days before the first cost are left out: the mean is over 1.5 days.
    assert forecast(20, {sixth: 0, dt.date(2026, 11, 11): 3}, noon) == 20 + 2 * Decimal("18.5")
    # Less than one day gives no daily mean of its own.
    assert forecast(20, {twelfth: 3}, noon) == 20 + 3 * Decimal("18.5")
    # The sentence below the chart names the days.
    lately = {sixth: Decimal(0), dt.date(2026, 11, 11): Decimal(3)}
    assert budgets_steps.forecast(Decimal(20), lately, noon, lasting=Decimal(0), passing=Decimal(0)).mean_days == 2


def test_little_of_a_budget_is_not_nothing():
    said = [budgets_steps.percent_words(Decimal(spent), Decimal(500)) for spent in ("0", "0.12", "5", "499.99", "600")]
    assert said == ["0 %", "< 1 %", "1 %", "99 %", "120 %"]


def test_a_forecast_goes_on_with_what_runs():
    noon = dt.datetime(2026, 11, 12, 12, tzinfo=dt.UTC)
    # Work that ends by itself counts for one hour, but not beyond the month.
    assert forecast(20, {}, noon, passing=6) == 26
    last = dt.datetime(2026, 11, 30, 23, 30, tzinfo=dt.UTC)
    assert forecast(20, {}, last, passing=6) == 23
    # Work without an end counts until the end of the month.
    assert forecast(20, {}, noon, lasting=6) == 20 + 6 * 24 * Decimal("18.5")
    assert forecast(20, {}, noon, lasting=6, passing=6) == 26 + 6 * 24 * Decimal("18.5")
    # The mean already includes it, so it is not added twice.
    full = {dt.date(2026, 11, day): 144 for day in range(6, 12)} | {dt.date(2026, 11, 12): 72}
    assert forecast(936, full, noon, lasting=6) == 936 + 144 * Decimal("18.5")


@given(
    st.lists(st.integers(0, 1000), min_size=7, max_size=7),
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(0, 29 * 24),
)
def test_a_forecast_is_never_less_than_what_was_spent_nor_less_with_more_running(days, lasting, passing, hours):
    now = START + hours * HOUR
    lately = {now.date() - n * periods.DAY: cost for n, cost in enumerate(days)}
    expected = forecast(50, lately, now, lasting=lasting, passing=passing)
    assert expected >= 50
    assert forecast(50, lately, now, lasting=lasting + 1, passing=passing) >= expected
    assert forecast(50, lately, now, lasting=lasting, passing=passing + 1) >= expected
    assert forecast(50, lately, periods.month(now).until - dt.timedelta(microseconds=1)) < 50 + Decimal("0.01")


def test_a_state_is_the_strongest_thing_that_holds():
    def word(spent, expected, *kinds, **changed):
        steps = [budgets_steps.Step(kind, START, START, done_at=START) for kind in kinds]
        return budgets_steps.state(replace(HUNDRED, **changed), Decimal(spent), Decimal(expected), steps)

    assert word(50, 90) == "on track"
    assert word(50, 101) == "tight"
    assert word(100, 101) == "used up"
    assert word(100, 101, "block") == "blocked"
    assert word(100, 101, "block", "stop_services") == "services stopped"
    assert word(100, 101, "block", "stop_services", "stop_all") == "stopped"
    assert word(100, 101, "block", lifted=True) == "lifted"
    assert word(100, 101, paused=True) == "paused"


# With real spending


@pytest.fixture
def now(monkeypatch):
    """Sets the clock to the middle of a month, because these tests look some hours ahead and back."""
    return stop_the_clock(monkeypatch)


@pytest.fixture
def prices(db):
    Price.objects.create(sku="gpu", per_hour=Decimal(60), valid_from=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))


@pytest.fixture
def use(prices, now):
    """use(ops, 5) → 5 GPU-minutes used this month, at one unit of money each; with `running` the pod goes on."""
    count = iter(range(1000))

    def make(appcode, minutes, *, since=now - 3 * HOUR, running=False):
        uid = f"pod-{next(count)}"
        labels = {"cluster": "demo", "run": "1", "role": "master", "index": "0"}
        # `minutes` GPUs for one minute.
        state = PodState(
            uid,
            "local",
            appcode.pk,
            f"run {uid}",
            labels,
            "Running",
            scheduled_at=since,
            started_at=since,
            gpus=minutes,
        )
        if not running:
            state = replace(state, phase="Succeeded", finished_at=since + MINUTE)
        with transaction.atomic():
            record.record([state])

    return make


def ask(amount=100, policy="stop_all", countdown=60):
    return Asked(Decimal(amount), policy, countdown)


def standing():
    return {(row.kind, bool(row.done_at)) for row in BudgetStep.objects.filter(kind__in=MEASURES, lifted_at=None)}


def verbs(prefix="budget."):
    return list(Event.objects.filter(verb__startswith=prefix).order_by("pk").values_list("verb", flat=True))


def test_a_budget_from_half_to_everything_stopped(people, use, now):
    budget = actions.add(people.ops, ask(), acting_user=people.alice)
    use(people.ops, 49)
    assert loop.turn(now) == 0
    use(people.ops, 1)
    assert loop.turn(now) == 1
    use(people.ops, 50)
    assert loop.turn(now) == 3
    assert standing() == {("block", False)}
    assert access.why_blocked(people.ops, now) == ""
    assert loop.turn(now + HOUR - MINUTE) == 0
    loop.turn(now + HOUR)
    assert standing() == {("block", True), ("stop_services", False)}
    assert "New runs of ops-demo are blocked: the budget of ops-demo" in access.why_blocked(people.ops, now + HOUR)
    assert access.why_blocked(people.flight, now + HOUR) == ""
    assert access.orders(now + HOUR) == []
    loop.turn(now + 2 * HOUR)
    [order] = access.orders(now + 2 * HOUR)
    assert (order.kind, order.appcodes) == ("stop_services", (people.ops.pk,))
    assert order.message.startswith("Stopped because the budget of ops-demo for ")
    loop.turn(now + 3 * HOUR)
    assert {each.kind for each in access.orders(now + 3 * HOUR)} == {"stop_services", "stop_all"}
    for _ in range(3):
        assert loop.turn(now + 4 * HOUR) == 0
    assert verbs() == [
        "budget.set", "budget.told", "budget.told", "budget.announced", "budget.acted", "budget.announced", "budget.acted",
        "budget.announced", "budget.acted",
    ]  # fmt: skip
    mails = list(Mail.objects.order_by("pk").values_list("subject", flat=True))
    assert len(mails) == 8
    assert mails[0].startswith("ops-demo has used 50 % of its budget for ")
    assert mails[2].startswith("New runs of ops-demo will be blocked at ")
    assert mails[-1].startswith("Everything of ops-demo is stopped: ")
    assert str(budget) == "ops-demo"


def test_what_waits_for_posting_counts_and_posting_changes_nothing(people, use, now):
    budget = actions.add(people.ops, ask(), acting_user=people.alice)
    use(people.ops, 70)
    found = budgets_figures.figures([budget], now)[budget.pk]
    assert found.spent == 70
    posting.post(now)
    assert budgets_figures.figures([budget], now)[budget.pk] == found


def test_what_runs_counts_to_the_second(people, use, now):
    budget = actions.add(people.ops, ask(), acting_user=people.alice)
    use(people.ops, 1, since=now - MINUTE, running=True)
    found = budgets_figures.figures([budget], now + MINUTE)[budget.pk]
    assert (found.spent, found.per_hour) == (2, 60)
    assert found.forecast >= 62


def test_what_goes_on_until_somebody_ends_it_is_expected_until_the_month_is_over(people, use, now, monkeypatch):
    asked = []
    runs = extension_points.ExtensionPoint(lambda keys: asked.extend(keys) or {"run pod-1"})
    monkeypatch.setattr(extension_points, "without_end", runs)
    line = OrgNode.objects.get(path="qunarcorp.ops")
    of_code = actions.add(people.ops, ask(), acting_user=people.alice)
    of_line = actions.add(line, ask(), acting_user=people.root)
    use(people.ops, 1, since=now - MINUTE, running=True)
    use(people.ops, 2, since=now - MINUTE, running=True)
    found = budgets_figures.figures([of_code, of_line], now)
    hours = Decimal((periods.month(now).until - now) // HOUR)
    assert {pk: figures.per_hour for pk, figures in found.items()} == {of_code.pk: 180, of_line.pk: 180}
    # Of the three GPUs, the two of a service go on; the third is assumed to end within an hour.
    expected = 3 + 60 + 120 * hours
    assert found[of_code.pk].forecast == found[of_line.pk].forecast == expected
    assert budgets_figures.together([people.ops.pk], now).forecast == expected
    assert set(asked) == {"run pod-0", "run pod-1"}


def test_a_business_line_counts_and_blocks_all_of_its_appcodes(people, use, now, make_appcode):
    OrgNode.objects.create(path="qunarcorp.ops.dev")
    second = make_appcode("ops-second", org="qunarcorp.ops.dev", namespace="-", owner=people.alice)
    line = OrgNode.objects.get(path="qunarcorp.ops")
    actions.add(line, ask(policy="stop_services"), acting_user=people.root)
    use(people.ops, 60)
    use(second, 40)
    use(people.flight, 500)
    for turn in range(3):
        loop.turn(now + turn * HOUR)
    later = now + 2 * HOUR
    for appcode in (people.ops, second):
        assert "the budget of business line qunarcorp.ops" in access.why_blocked(appcode, later)
    assert access.why_blocked(people.flight, later) == ""
    [order] = access.orders(later)
    assert set(order.appcodes) == {people.ops.pk, second.pk}
    assert set(Mail.objects.values_list("appcode__code", flat=True)) == {"ops-demo", "ops-second"}
    [notice] = access.notices(people.victor, "ops-demo", later)
    assert (notice.holds, notice.may_see) == ("Services of qunarcorp.ops are stopped", False)
    assert access.notices(people.mallory, now=later) == []


def test_a_turn_takes_as_many_queries_for_many_budgets(people, use, now, make_appcode, django_assert_max_num_queries):
    actions.add(OrgNode.objects.get(path="qunarcorp.ops"), ask(), acting_user=people.root)
    for n in range(20):
        appcode = make_appcode(f"code-{n}", org="qunarcorp.ops", namespace="ops", owner=people.alice)
        actions.add(appcode, ask(), acting_user=people.alice)
        use(appcode, 90 + n)
    with django_assert_max_num_queries(40):
        assert loop.turn(now) > 40


def test_a_raised_amount_unblocks_at_once_and_what_comes_again_is_announced_again(people, use, now):
    budget = actions.add(people.ops, ask(policy="block", countdown=1), acting_user=people.alice)
    use(people.ops, 100)
    loop.turn(now - 2 * MINUTE)
    loop.turn(now)
    assert access.why_blocked(people.ops)
    actions.change(budget, ask(200, "block", 1), acting_user=people.alice)
    assert access.why_blocked(people.ops) == ""
    assert standing() == set()
    assert Event.objects.filter(verb="budget.taken-back", actor=people.alice).count() == 1
    use(people.ops, 100)
    loop.turn(now + MINUTE)
    assert standing() == {("block", False)}
    assert BudgetStep.objects.filter(kind="block").count() == 1
    # The higher amount reset the marks at 80 and 100 %, which are now reached together; 50 % stayed reached.
    told = Event.objects.filter(verb="budget.told").order_by("pk").values_list("message", flat=True)
    assert [message.split(" of its")[0] for message in told] == ["ops-demo has used 100 %", "ops-demo has used 100 %"]


def test_a_lift_holds_until_the_month_is_over(people, use, now):
    budget = actions.add(people.ops, ask(policy="block", countdown=1), acting_user=people.alice)
    use(people.ops, 100)
    loop.turn(now - 2 * MINUTE)
    loop.turn(now)
    with pytest.raises(PermissionDenied):
        actions.lift(budget, "please", acting_user=people.alice)
    with pytest.raises(Invalid):
        actions.lift(budget, "  ", acting_user=people.root)
    actions.lift(budget, "The paper is due.", acting_user=people.root)
    assert access.why_blocked(people.ops) == ""
    assert BudgetStep.objects.get(kind="block").lifted_by == people.root
    use(people.ops, 1000)
    assert loop.turn(now + HOUR) == 0
    budget.refresh_from_db()
    assert budget.lifted_until == periods.month(now).until
    with pytest.raises(Conflict):
        actions.lift(budget, "again", acting_user=people.root)
    # The lift ends with the month, and the next month begins with nothing spent.
    assert not budget.is_lifted(periods.month(now).until)
    actions.enforce(budget, acting_user=people.root)
    assert standing() == {("block", False)}


def test_a_pause_does_nothing_and_what_comes_after_it_is_announced(people, use, now):
    budget = actions.add(people.ops, ask(policy="block", countdown=1), acting_user=people.alice)
    actions.pause(budget, "We move.", acting_user=people.root)
    use(people.ops, 100)
    assert loop.turn(now) == 0
    actions.resume(budget, acting_user=people.root)
    assert standing() == {("block", False)}


def test_a_new_month_begins_anew(people, use, now):
    actions.add(people.ops, ask(policy="block", countdown=1), acting_user=people.alice)
    use(people.ops, 100)
    loop.turn(now)
    loop.turn(now + MINUTE)
    assert access.why_blocked(people.ops, now + MINUTE)
    following = periods.month(now).until + MINUTE
    assert access.why_blocked(people.ops, following) == ""
    assert loop.turn(following) == 0
    assert BudgetStep.objects.filter(kind="block", lifted_at=None).count() == 1, "the old month keeps what was done"


# Access


def test_what_an_administrator_set_is_the_administrators(people):
    budget = actions.add(people.ops, ask(), acting_user=people.alice)
    actions.change(budget, ask(50), acting_user=people.alice)
    for who, error in ((people.bob, PermissionDenied), (people.victor, PermissionDenied), (people.mallory, Http404)):
        with pytest.raises(error):
            actions.change(budget, ask(1), acting_user=who)
    actions.change(budget, ask(40), acting_user=people.root)
    for act in (
        lambda: actions.change(budget, ask(1000), acting_user=people.alice),
        lambda: actions.remove(budget, acting_user=people.alice),
    ):
        with pytest.raises(PermissionDenied, match="An administrator set this budget"):
            act()
    assert Budget.objects.get().amount == 40
    actions.remove(budget, acting_user=people.root)
    assert not Budget.objects.exists()


def test_one_budget_for_one_scope(people):
    actions.add(people.ops, ask(), acting_user=people.alice)
    with pytest.raises(Invalid, match="has a budget already"):
        actions.add(people.ops, ask(), acting_user=people.root)
    line = OrgNode.objects.get(path="qunarcorp.ops")
    actions.add(line, ask(), acting_user=people.root)
    with pytest.raises(Invalid, match=r"businessLine: qunarcorp\.ops has a budget already"):
        actions.add(line, ask(), acting_user=people.root)
    with pytest.raises(Invalid, match="Only administrators"):
        actions.scope_of("", "qunarcorp.ops", people.alice)
    with pytest.raises(Invalid, match="There is no appcode"):
        actions.scope_of("ops-demo", "", people.mallory)


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (ask(0), "amount"), (ask(-1), "amount"), (ask("1.005"), "amount"), (ask("NaN"), "amount"), (ask("1e30"), "amount"),
        (ask(policy="kill"), "policy"), (ask(countdown=0), "countdownMinutes"), (ask(countdown=10081), "countdownMinutes"),
    ],
)  # fmt: skip
def test_bad_input_is_told_at_its_field(people, wrong, path):
    with pytest.raises(Invalid) as caught:
        actions.add(people.ops, wrong, acting_user=people.alice)
    assert [error.path for error in caught.value.errors] == [(path,)]
    assert not Budget.objects.exists()


def test_the_database_keeps_what_a_budget_is(people, now):
    budget = actions.add(people.ops, ask(), acting_user=people.alice)
    step = {"budget": budget, "month": budgets_figures.month_of(now), "announced_at": now, "due_at": now + HOUR}
    BudgetStep.objects.create(kind="block", **step)
    for wrong in (
        lambda: BudgetStep.objects.create(kind="block", **step),
        lambda: BudgetStep.objects.create(kind="stop_all", **step, done_at=now),
        lambda: Budget.objects.create(amount=1, set_at=now),
        lambda: Budget.objects.create(amount=0, set_at=now, appcode=people.flight),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            wrong()


# Crashes and concurrency


@pytest.mark.django_db(transaction=True)
def test_two_turns_at_once_tell_and_announce_once(people, use, now):
    actions.add(people.ops, ask(), acting_user=people.alice)
    use(people.ops, 100)
    ready, written = threading.Barrier(4), []

    def work():
        try:
            ready.wait()
            written.append(loop.turn(now))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(written) == [0, 0, 0, 4]
    assert Mail.objects.count() == 2
    assert verbs() == ["budget.set", "budget.told", "budget.announced"]


@pytest.mark.django_db(transaction=True)
def test_killed_anywhere_in_a_turn_the_next_one_goes_on(people, use, now):
    """Killed between the announcement and the action, and between any two statements of a turn."""
    actions.add(people.ops, ask(policy="block"), acting_user=people.alice)
    use(people.ops, 100)
    for when in (now, now + HOUR):
        for statement in range(1, 60):
            if _dies_at(statement, when):
                continue
            break
        else:
            pytest.fail("a turn has fewer statements than that")
    assert standing() == {("block", True)}
    assert verbs() == ["budget.set", "budget.told", "budget.announced", "budget.acted"]
    assert Mail.objects.count() == 3
    assert BudgetStep.objects.get(kind="block").done_at == now + HOUR


def _dies_at(statement: int, when: dt.datetime) -> bool:
    """Runs a turn in a process that is killed right before its `statement`-th statement. Returns False if it finished earlier."""
    connections.close_all()
    child = os.fork()
    if child == 0:
        count = 0

        def run(execute, sql, parameters, many, context):
            nonlocal count
            count += 1
            if count == statement:
                os.kill(os.getpid(), signal.SIGKILL)
            return execute(sql, parameters, many, context)

        with connection.execute_wrapper(run):
            loop.turn(when)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)
