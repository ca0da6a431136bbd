"""Results in a browser: parallel coordinates answer the mouse, and the filter offers names."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from tests.browser import chromium, give_session
from tests.clusters.results.test_results import run_of, steps


def test_names_are_offered_and_a_span_along_an_axis_leaves_the_runs_that_cross_it(
    people: Any, live_server: Any
) -> None:
    for n, (rate, loss) in enumerate(((0.1, 0.5), (0.2, 0.4), (0.3, 0.1)), 1):
        run_of(people, f"r{n}", steps(loss), parameters={"LR": str(rate)})
    with chromium() as browser:
        context = browser.new_context(base_url=live_server.url)
        give_session(context, live_server.url, "victor")
        page = context.new_page()
        page.goto("/results/ops-demo")
        # The field of conditions offers names for the last one.
        names = page.locator("#condition-names option")
        page.get_by_label("Only runs where").press_sequentially("LR > 0.05 and lo")
        values = names.evaluate_all("options => options.map((each) => each.value)")
        assert values[:3] == ["LR > 0.05 and LR", "LR > 0.05 and loss", "LR > 0.05 and state"]
        page.get_by_label("Only runs where").fill("")
        page.get_by_text("Parameters and loss").click()
        picture, left = page.locator(".strands svg"), page.locator(".strands svg > a:not(.is-out)")
        picture.scroll_into_view_if_needed()
        expect(left).to_have_count(3)
        box = picture.bounding_box()
        assert box

        def drag(x: float, begin: float, end: float) -> None:
            page.mouse.move(box["x"] + x * box["width"], box["y"] + begin * box["height"])
            page.mouse.down()
            page.mouse.move(box["x"] + x * box["width"], box["y"] + end * box["height"], steps=3)
            page.mouse.up()

        # From the middle of LR up: 0.2 and 0.3. Of these, the lower half of the loss: 0.1.
        drag(0, 0.6, 0.0)
        expect(left).to_have_count(2)
        drag(1, 0.6, 1.0)
        expect(left).to_have_count(1)
        # A click on an axis ends its span.
        drag(0, 0.3, 0.3)
        drag(1, 0.3, 0.3)
        expect(left).to_have_count(3)
        assert page.url.endswith("/results/ops-demo"), "no line was opened"
