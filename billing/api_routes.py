from django.urls import URLPattern, URLResolver, path

# The routes of pages know what a month in an address is.
from billing import api, budget_api, dashboard_api, export_api, invoice_api, invoice_routes, price_api  # noqa: F401

INVOICE = "appcodes/<slug:code>/invoices/<month:month>"

urlpatterns: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/usage", api.AppcodeUsage.as_view()),
    path("dashboard/spending", dashboard_api.Spending.as_view()),
    path("dashboard/utilisation", dashboard_api.Utilisation.as_view()),
    path("dashboard/waste", dashboard_api.WasteOverTime.as_view()),
    path("dashboard/waste/cases", dashboard_api.WasteCases.as_view()),
    path("dashboard/waste/idle", dashboard_api.IdleTasks.as_view()),
    path("dashboard/reconciliation", dashboard_api.Reconciliation.as_view()),
    path("dashboard/reconciliation/without-end", dashboard_api.WithoutEnd.as_view()),
    path("dashboard/reconciliation/flagged", dashboard_api.Flagged.as_view()),
    path("dashboard/reconciliation/corrections", dashboard_api.Corrections.as_view()),
    path("dashboard/reconciliation/quarantine", dashboard_api.Quarantine.as_view()),
    path("segments/<int:pk>", dashboard_api.OneSegment.as_view()),
    path("exports/focus", export_api.FocusExport.as_view()),
    path("examples", dashboard_api.Examples.as_view()),
    path("prices", price_api.Prices.as_view()),
    path("prices/<int:pk>", price_api.OnePrice.as_view()),
    path("prices/preview", price_api.PriceEffect.as_view()),
    path("prices/file", price_api.PriceFile.as_view()),
    path("discounts", price_api.Discounts.as_view()),
    path("discounts/<int:pk>", price_api.OneDiscount.as_view()),
    path("appcodes/<slug:code>/credits", price_api.AppcodeCredits.as_view()),
    path("invoices", invoice_api.Invoices.as_view()),
    path(INVOICE, invoice_api.OneInvoice.as_view()),
    path(f"{INVOICE}/pdf", invoice_api.InvoicePdf.as_view()),
    path(f"{INVOICE}/csv", invoice_api.InvoiceCsv.as_view()),
    path(f"{INVOICE}/document", invoice_api.InvoiceCanonical.as_view()),
    path(f"{INVOICE}/lines/<int:place>/entries", invoice_api.InvoiceLineEntries.as_view()),
    path(f"{INVOICE}/credit-notes", invoice_api.CreditNotes.as_view()),
    path("months", invoice_api.Months.as_view()),
    path("months/<month:month>/close", invoice_api.CloseMonth.as_view()),
    path("budgets", budget_api.Budgets.as_view()),
    path("budgets/<int:pk>", budget_api.OneBudget.as_view()),
    path("budgets/<int:pk>/steps", budget_api.BudgetSteps.as_view()),
    path("budgets/<int:pk>/lift", budget_api.LiftBudget.as_view()),
    path("budgets/<int:pk>/pause", budget_api.PauseBudget.as_view()),
]
