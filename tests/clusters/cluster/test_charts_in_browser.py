"""Charts of a running cluster in Chromium: what the crosshair says, and the view that a live update and a link keep."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Locator, Page, expect

from clusters.comparison.values import smoothed
from clusters.results import numbers
from clusters.runs.models import Run
from clusters.scalars.reading import scalars_of
from portal.assets import has_uplot
from portal.pages.charts import number
from tests.browser import assert_fits, chromium, give_session
from tests.clusters.scalars.test_media import PNG, image, of
from tests.clusters.scalars.test_scalars import event

pytestmark = pytest.mark.django_db(transaction=True)
METRICS = "/clusters/ops-demo/demo/metrics"


def value(step: int, folder: str) -> float:
    return {"train": 2, "validation": 3}[folder] / (step + 1)


@pytest.fixture
def store(make_cluster: Any, people: Any, s3: Any, bucket: str) -> Callable[[int], None]:
    """store(100) → the running cluster `demo` has 100 steps of `loss` in two folders."""
    from datastores.models import Datastore

    spec = {"server": s3.url, "access_key": s3.access_key, "bucket": bucket, "prefix": "", "region": "us-east-1"}
    Datastore.objects.create(appcode=people.ops, name="out", kind="s3", spec=spec, secret=s3.secret_key)
    make_cluster("demo", phase="Running", output="out")

    def stored(steps: int) -> None:
        for folder in ("train", "validation"):
            constant = {"lr": 0.001} if folder == "train" else {}
            body = b"".join(event(step, loss=value(step, folder), **constant) for step in range(steps))
            s3.client.put_object(Bucket=bucket, Key=f"demo/1/{folder}/events.out.tfevents.1", Body=body)

    return stored


def said(chart: Locator) -> tuple[int, dict[str, float]]:
    """The step under the crosshair and its values, as a screen reader says them: "step 3: train 0.5, validation 0.75", and of
    a smoothed chart "train 0.5 (smoothed 0.61)"."""
    step, _, values = (chart.get_attribute("aria-valuetext") or "").removeprefix("step ").partition(": ")
    return int(step), {each.split()[0]: float(each.split()[1]) for each in values.split(", ")}


def test_a_chart_answers_and_keeps_its_view(store: Callable[[int], None], live_server: Any) -> None:
    assert has_uplot(), "`make test` fetches it"
    store(100)
    complaints: list[str] = []
    with chromium() as browser:
        context = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
        give_session(context, live_server.url, "victor")

        def opened(path: str) -> tuple[Page, Locator]:
            page = context.new_page()
            page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(path)
            return page, page.get_by_role("slider", name="loss by step")

        page, chart = opened(METRICS)
        area = chart.locator(".u-over")
        area.hover(position={"x": 150, "y": 90})
        step, values = said(chart)
        assert 0 < step < 99
        for folder in ("train", "validation"):
            assert number(values[folder]) == number(value(step, folder))
        tip = page.locator(".plot-tip")
        expect(tip).to_contain_text(f"step {step}")
        expect(tip.locator("tr").first.locator("td")).to_have_text(
            ["", "validation", number(value(step, "validation"))]
        )

        with page.expect_download() as download:
            page.get_by_role("button", name="CSV of loss").click()
        lines = download.value.path().read_text().splitlines()
        assert len(lines) == 1 + 2 * 100
        assert lines[:3] == [
            'line,"step",time,value', '"train",0,1970-01-01T00:00:01.000Z,2', '"train",1,1970-01-01T00:00:01.000Z,1',
        ]  # fmt: skip

        # A picture is large enough for a slide; the chart on the page stays as it is.
        before = area.bounding_box()
        with page.expect_download() as download:
            page.get_by_role("button", name="PNG of loss").click()
        assert int.from_bytes(download.value.path().read_bytes()[16:20]) > 960
        assert area.bounding_box() == before

        box = area.bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 3 / 4, box["y"] + 60, steps=3)
        page.mouse.up()
        expect(page.get_by_role("button", name="Zoom out")).to_be_visible()
        page.get_by_role("button", name="Log axis of loss").click()
        page.get_by_role("button", name=re.compile("^validation")).click()
        page.get_by_label("Smoothing").fill("0.6")
        page.get_by_label("Smoothing").blur()
        # The smoothed value and the value, with the digits of the tables.
        area.hover(position={"x": 150, "y": 90})
        step, _ = said(chart)
        values = [value(each, "train") for each in range(step + 1)]
        smooth = number([*smoothed(values, 0.6)][-1])
        expect(tip.locator("td")).to_have_text(["", "", "Smoothed", "Value", "", "train", smooth, number(values[-1])])
        train = page.get_by_role("button", name=re.compile("^train"))
        page.mouse.move(0, 0)

        def ends_with(step: int) -> None:
            expect(train).to_contain_text(number(value(step, "train")))

        # The legend has the value itself, smoothed or not.
        ends_with(99)

        # New numbers arrive by themselves, and the view stays.
        store(200)
        ends_with(199)

        def assert_view(page: Page, chart: Locator) -> None:
            chart.press("Home")
            step, values = said(chart)
            assert 45 <= step <= 55, "the left half is out of sight"
            assert list(values) == ["train"]
            expect(page.get_by_role("button", name="Log axis of loss")).to_have_attribute("aria-pressed", "true")
            expect(page.get_by_label("Smoothing")).to_have_value("0.6")

        assert_view(page, chart)
        assert_fits(page, "charts")
        # The link keeps it, too.
        other, same = opened(page.url)
        assert_view(other, same)
        same.press("Escape")
        same.press("Home")
        assert said(same)[0] == 0
        # Up and down it zooms the other axis, which a box does as well; the keys do it, too.
        box = same.locator(".u-over").bounding_box()
        assert box
        other.mouse.move(box["x"] + 200, box["y"] + box["height"] / 2)
        other.mouse.down()
        other.mouse.move(box["x"] + 205, box["y"] + box["height"] - 2, steps=3)
        other.mouse.up()
        expect(other.get_by_role("button", name="Zoom out")).to_be_visible()

        def view(page: Page) -> dict[str, list[str]]:
            return parse_qs(page.url.partition("#view?")[2])

        assert "zoom" not in view(other)
        low, high, _ = view(other)["zoomy"][0].split(":")
        # The lower half of a log axis that shows 0.01 to 2.
        assert 0.009 < float(low) < 0.012
        assert 0.1 < float(high) < 0.2
        same.press("y")
        assert float(view(other)["zoomy"][0].split(":")[0]) > 0.01
        same.locator(".u-over").dblclick(position={"x": 100, "y": 100})
        expect(other.get_by_role("button", name="Zoom out")).to_be_hidden()
        assert "zoomy" not in view(other)
        # A constant stands in the middle of its axis, of which this shows the middle half.
        other.get_by_role("slider", name="lr by step").press("y")
        low, high, _ = view(other)["zoomy"][0].split(":")
        assert (float(low), float(high)) == pytest.approx((0.00095, 0.00105))
        assert complaints == []

        # Without the library there is a picture.
        page = context.new_page()
        page.route("**/uplot.js", lambda route: route.abort())
        page.goto(METRICS)
        expect(page.get_by_role("img", name="loss by step").locator("svg")).to_be_visible()
        expect(page.get_by_role("button", name="Log axis of loss")).to_be_hidden()


def test_the_x_axis_is_steps_relative_time_or_wall_time(
    store: Callable[[int], None], live_server: Any, s3: Any, bucket: str
) -> None:
    store(0)
    began = 1_800_000_000
    body = b"".join(event(step, at=began + 90 * step, reward=step) for step in range(5))
    s3.client.put_object(Bucket=bucket, Key="demo/1/a/events.out.tfevents.1", Body=body)
    s3.client.put_object(
        Bucket=bucket, Key="demo/1/b/metrics.csv", Body=b"step,reward,lr,gap\n0,1,2,0.00001\n4,3,2,1\n"
    )
    Run.objects.update(started_at=datetime.fromtimestamp(began - 30, UTC))
    with chromium() as browser:
        context = browser.new_context(base_url=live_server.url, timezone_id="UTC")
        give_session(context, live_server.url, "victor")
        page = context.new_page()

        def end_of(title: str) -> str:
            chart = page.get_by_role("slider", name=re.compile(f"^{title} by"))
            chart.press("End")
            return chart.get_attribute("aria-valuetext") or ""

        page.goto(METRICS)
        assert end_of("reward") == "step 4: a 4, b 3"
        note = page.locator("[data-plot-note]:visible")
        expect(note).to_have_count(0)
        page.get_by_label("X axis").select_option("Relative time")
        assert end_of("reward") == "6 min 30 s: a 4"
        # Numbers without times stay where they are, and the chart says so.
        assert end_of("lr") == "step 4: 2"
        expect(note).to_have_text([
            *["The times of these numbers are not known, so they stay over steps."] * 2,
            "Without known times, so drawn over steps only: b.",
        ])  # fmt: skip
        # Five decades are told apart on a log axis only, unless somebody wants another one: everywhere, or of one chart.
        for choice, pressed in (("Linear", {}), ("Log", {"gap", "lr", "reward"}), ("Automatic", {"gap"})):
            page.get_by_label("Y axis").select_option(choice)
            for title in ("gap", "lr", "reward"):
                shown = str(title in pressed).lower()
                expect(page.get_by_role("button", name=f"Log axis of {title}")).to_have_attribute("aria-pressed", shown)
        page.get_by_role("button", name="Log axis of gap").click()
        assert page.url.endswith("#view?x=relative&linear=gap")
        page.reload()
        expect(page.get_by_role("button", name="Log axis of gap")).to_have_attribute("aria-pressed", "false")
        assert_fits(page, "charts over time")
        page.goto("about:blank")
        page.goto(f"{METRICS}#view?x=relative")
        assert end_of("reward") == "6 min 30 s: a 4"
        page.get_by_label("X axis").select_option("Wall time")
        assert end_of("reward") == "2027-01-15 08:06:00: a 4"
        assert page.url.endswith("#view?x=time")

        # In Compare the choice for pictures is that of charts, too, until somebody changes it.
        page.goto("/appcodes/ops-demo/compare?runs=demo/1&x=time")
        assert end_of("reward") == "6 min 30 s: demo/1 a 4"
        page.get_by_label("X axis").select_option("Step")
        page.reload()
        assert end_of("reward") == "step 4: demo/1 a 4, demo/1 b 3"

        # Results keeps it when a filter changes the address.
        run = Run.objects.select_related("cluster").get()
        numbers.keep(run, scalars_of(run), datetime.now(UTC))
        page.goto("/results/ops-demo")
        page.get_by_label("X axis").select_option("Relative time")
        page.get_by_label("Search runs").fill("demo")
        page.wait_for_url("**?search=demo#view?x=relative")
        assert end_of("reward") == "6 min 30 s: demo/1 a 4"
        # So does a view that is kept, for others, too.
        give_session(context, live_server.url, "alice")
        page.reload()
        page.get_by_label("Y axis").select_option("Log")
        page.get_by_text("View", exact=True).click()
        page.get_by_label("Name of this view").fill("relative")
        page.get_by_role("button", name="Save").click()
        page.wait_for_url("**&view=relative#view?x=relative&y=log")
        give_session(context, live_server.url, "victor")
        page.goto("/results/ops-demo")
        page.get_by_text("View", exact=True).click()
        page.get_by_role("link", name="relative").click()
        expect(page.get_by_label("Y axis")).to_have_value("log")
        assert end_of("reward") == "6 min 30 s: demo/1 a 4"


def test_charts_are_found_pinned_and_sized(
    store: Callable[[int], None], live_server: Any, s3: Any, bucket: str
) -> None:
    store(3)
    body = b"".join(event(step, **{f"layer_{n}/norm": float(n) for n in range(60)}) for step in range(3))
    s3.client.put_object(Bucket=bucket, Key="demo/1/events.out.tfevents.2", Body=body)
    with chromium() as browser:
        context = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
        give_session(context, live_server.url, "victor")
        page = context.new_page()
        page.goto(METRICS)
        titles = page.locator("#charts .chart:visible h2")
        expect(page.locator("#charts")).to_contain_text("62 metrics; the first 40 are drawn.")
        # While nothing changes, nothing is sent again.
        with page.expect_response(lambda said: "/metrics/charts" in said.url and said.status == 304):
            pass
        # One that is drawn is found at once, another by the server, and the link has the words.
        page.get_by_label("Find a metric").fill("NORM layer_5")
        expect(titles).to_have_text([f"layer_5{n}/norm" for n in ("", *range(10))])
        assert parse_qs(page.url.partition("?")[2]) == {"find": ["NORM layer_5"]}
        page.get_by_role("button", name="Pin layer_59/norm").click()
        expect(titles.first).to_have_text("layer_59/norm")
        page.reload()
        expect(page.get_by_label("Find a metric")).to_have_value("NORM layer_5")
        expect(titles.first).to_have_text("layer_59/norm")
        page.get_by_label("Find a metric").fill("")
        expect(titles.nth(1)).to_have_text("loss")
        assert "?" not in page.url
        page.get_by_role("button", name="1 column").click()
        expect(page.get_by_role("button", name="1 column")).to_have_attribute("aria-pressed", "true")
        page.wait_for_function("document.querySelector('#charts .chart').clientWidth > 900")
        assert_fits(page, "charts, one column")
        page.get_by_role("button", name="Pin layer_59/norm").click()
        expect(titles.first).to_have_text("loss")

        # The same without JavaScript, in a page of its own.
        plain = browser.new_context(base_url=live_server.url, java_script_enabled=False)
        give_session(plain, live_server.url, "victor")
        page = plain.new_page()
        page.goto(METRICS)
        page.get_by_role("link", name="Show the values now").click()
        page.get_by_label("Find a metric").fill("layer_58")
        page.keyboard.press("Enter")
        expect(page.get_by_role("img", name="layer_58/norm by step").locator("svg")).to_be_visible()
        page.get_by_role("button", name="Pin layer_58/norm").click()
        page.get_by_label("Find a metric").fill("")
        page.keyboard.press("Enter")
        expect(page.locator(".chart h2").first).to_have_text("layer_58/norm")


def test_a_line_without_a_value_at_the_crosshair_says_where_its_nearest_one_is(
    store: Callable[[int], None], live_server: Any, s3: Any, bucket: str
) -> None:
    store(2)
    for folder, step in (("train", 10), ("validation", 14)):
        body = b"".join(event(at, tiny=1.523e-8 * (at + 1)) for at in (0, step, 20))
        s3.client.put_object(Bucket=bucket, Key=f"demo/1/{folder}/events.out.tfevents.3", Body=body)
    with chromium() as browser:
        context = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
        give_session(context, live_server.url, "victor")
        page = context.new_page()
        page.goto(METRICS)
        chart = page.get_by_role("slider", name="tiny by step")
        chart.press("Home")
        # In the words of the tables.
        assert chart.get_attribute("aria-valuetext") == "step 0: train 1.52e-08, validation 1.52e-08"
        chart.press("ArrowRight")
        said = "step 10: validation 2.28e-07 @ 14, train 1.68e-07"
        assert chart.get_attribute("aria-valuetext") == said
        expect(page.locator(".plot-tip")).to_contain_text("2.28e-07 @ 14")
        # Alternatives.
        page.get_by_label("Find a metric").fill("lr | tiny")
        expect(page.locator("#charts .chart:visible h2")).to_have_text(["lr", "tiny"])


# Pixels of a canvas that have a colour: of lines and dots, and not of axes and words.
COLOURED = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let n = 0; n < data.length; n += 4) {
    const colour = data.slice(n, n + 3);
    if (data[n + 3] && Math.max(...colour) - Math.min(...colour) > 60) found++;
  }
  return found;
}"""


def test_the_only_value_of_a_metric_is_a_dot(
    store: Callable[[int], None], s3: Any, bucket: str, live_server: Any
) -> None:
    store(0)
    body = event(5, alone=0.9) + b"".join(event(step, several=step) for step in range(3))
    s3.client.put_object(Bucket=bucket, Key="demo/1/train/events.out.tfevents.1", Body=body)
    with chromium() as browser:
        context = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
        give_session(context, live_server.url, "victor")
        page = context.new_page()
        page.goto(METRICS)
        for name in ("alone", "several"):
            canvas = page.get_by_role("slider", name=f"{name} by step").locator("canvas").first
            canvas.wait_for()
            assert canvas.evaluate(COLOURED) > 10, name


def test_a_table_sorts_and_its_rows_are_found(
    store: Callable[[int], None], live_server: Any, s3: Any, bucket: str
) -> None:
    store(1)
    told = '{"columns": ["n", "label"], "data": [[9, "cat"], [10, "dog"], [null, "fox"], [2, "cat"]]}'
    key = f"demo/1/wandb/offline-run-1-ab/files/media/table/preds_4_{'0f' * 10}.table.json"
    s3.client.put_object(Bucket=bucket, Key=key, Body=told.encode())
    with chromium() as browser:
        context = browser.new_context(base_url=live_server.url)
        give_session(context, live_server.url, "victor")
        page = context.new_page()
        page.goto(METRICS)
        page.get_by_role("heading", name="Tables").scroll_into_view_if_needed()
        first = page.locator(".rows tbody tr:visible td:first-child")
        expect(first).to_have_text(["9", "10", "", "2"])
        head = page.get_by_role("button", name="n", exact=True)
        head.click()
        expect(first).to_have_text(["2", "9", "10", ""])
        head.press("Enter")
        expect(first).to_have_text(["10", "9", "2", ""])
        expect(page.get_by_role("columnheader", name="n")).to_have_attribute("aria-sort", "descending")
        page.get_by_label("Find rows").fill("cat 2")
        expect(first).to_have_text(["2"])
        expect(page.locator(".rows output")).to_have_text("1 of 4 rows")


def test_images_have_a_slider_over_their_steps(
    store: Callable[[int], None], live_server: Any, s3: Any, bucket: str
) -> None:
    store(2)
    key = "demo/1/events.out.tfevents.2"

    def painted(*steps: int) -> None:
        body = b"".join(of(image(PNG, width=9, height=4), step=step) for step in steps)
        s3.client.put_object(Bucket=bucket, Key=key, Body=body)

    painted(1, 2, 30)
    with chromium() as browser:
        context = browser.new_context(base_url=live_server.url)
        give_session(context, live_server.url, "victor")
        page = context.new_page()
        page.goto(METRICS)
        slider, images = page.get_by_role("slider", name="Step of picture"), page.locator(".film img:visible")
        expect(slider).to_have_attribute("aria-valuetext", "step 30")
        expect(images).to_have_count(1)
        images.press("Enter")
        large = page.get_by_role("dialog", name="picture at step 30")
        expect(large.get_by_role("img", name="picture at step 30")).to_be_visible()
        # From there one goes to the other steps, too.
        for step in (2, 1, 1):
            page.keyboard.press("ArrowLeft")
            expect(page.get_by_role("dialog", name=f"picture at step {step}").get_by_role("img")).to_be_visible()
        page.keyboard.press("ArrowRight")
        large = page.get_by_role("dialog", name="picture at step 2")
        large.get_by_role("button", name="Later").click()
        large = page.get_by_role("dialog", name="picture at step 30")
        expect(large.get_by_role("img", name="picture at step 30")).to_be_visible()
        expect(large.get_by_role("button", name="Later")).to_be_disabled()
        large.get_by_role("button", name="Close").click()
        expect(images).to_be_focused()
        slider.press("ArrowLeft")
        expect(images).to_have_attribute("alt", "picture at step 2")
        expect(page.locator(".film-steps output")).to_have_text("step 2")
        slider.press("Home")
        expect(images).to_have_attribute("alt", "picture at step 1")
        slider.press("ArrowRight")
        slider.blur()
        # Newer images arrive, and the chosen step stays.
        painted(1, 2, 30, 40)
        page.evaluate("htmx.ajax('GET', document.querySelector('#media').getAttribute('hx-get'), '#media')")
        expect(slider).to_have_attribute("max", "3")
        expect(images).to_have_attribute("alt", "picture at step 2")

        plain = browser.new_context(base_url=live_server.url, java_script_enabled=False)
        give_session(plain, live_server.url, "victor")
        page = plain.new_page()
        page.goto(f"{METRICS}/plain")
        expect(page.locator(".film img:visible")).to_have_count(4)
        expect(page.get_by_role("slider")).to_have_count(0)
