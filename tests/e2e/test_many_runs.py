"""Many runs as one project, with every program of the portal killed meanwhile: prepare data, sweep with cross-validation, retrain
the best, record its outcome in a hook, view its chart."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.chain import Chain
from tests.e2e.test_applications import LATE, sign_in
from tests.running import Portal, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("applications"), pytest.mark.usefixtures("without_show1")]


def test_the_best_of_many_is_trained_again_and_written_down(browser: Browser, portal_up: Portal) -> None:
    chain = Chain(portal_up, folds=3, parallel=3, gpu="middle-1-gpu", cpu="middle")
    chain.until("search", 120)
    assert eventually(chain.trials, 60), chain.status()
    chain.kill_everything()
    chain.until_over(400)
    chain.nothing_is_lost_or_double()
    chain.the_hook_has_written()

    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{portal_up.origin}/sweeps/ops-demo/all-search-1")
        sign_in(page, portal_up, "alice")
        expect(page.get_by_text("6 of 6").first).to_be_visible(timeout=LATE)
        expect(page.locator(".chart").first).to_be_visible(timeout=LATE)
        page.goto(f"{portal_up.origin}/clusters/ops-demo/{chain.final}/metrics")
        expect(page.locator(".chart h2").first).to_have_text("accuracy", timeout=LATE)
