"""Addresses of budgets."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from billing.views import budgets

urlpatterns: list[URLPattern | URLResolver] = [
    path("budgets", budgets.budget_list, name="budgets"),
    path("budgets/new", budgets.new_budget, name="new_budget"),
    path("budgets/notices", budgets.notices, name="budget_notices"),
    path("budgets/<int:pk>", budgets.budget, name="budget"),
    path("budgets/<int:pk>/remove", budgets.remove_budget, name="remove_budget"),
    path("budgets/<int:pk>/lift", budgets.lift_budget, name="lift_budget"),
    path("budgets/<int:pk>/enforce", budgets.enforce_budget, name="enforce_budget"),
    path("budgets/<int:pk>/pause", budgets.pause_budget, name="pause_budget"),
    path("budgets/<int:pk>/resume", budgets.resume_budget, name="resume_budget"),
]
