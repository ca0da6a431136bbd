from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from billing.budgets import pages

urlpatterns: list[URLPattern | URLResolver] = [
    path("budgets", pages.budget_list, name="budgets"),
    path("budgets/new", pages.new_budget, name="new_budget"),
    path("budgets/notices", pages.notices, name="budget_notices"),
    path("budgets/<int:pk>", pages.budget, name="budget"),
    path("budgets/<int:pk>/remove", pages.remove_budget, name="remove_budget"),
    path("budgets/<int:pk>/lift", pages.lift_budget, name="lift_budget"),
    path("budgets/<int:pk>/enforce", pages.enforce_budget, name="enforce_budget"),
    path("budgets/<int:pk>/pause", pages.pause_budget, name="pause_budget"),
    path("budgets/<int:pk>/resume", pages.resume_budget, name="resume_budget"),
]
