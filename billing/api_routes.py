from django.urls import URLPattern, URLResolver, path

from billing.accounts import api as accounts_api
from billing.budgets import api as budgets_api
from billing.dashboards import api as dashboards_api

# The converter `month` is registered by the routes of pages.
from billing.dashboards import usage_api
from billing.exports import api as exports_api
from billing.invoices import api as invoices_api
from billing.prices import api as prices_api

INVOICE = "appcodes/<slug:code>/invoices/<month:month>"

urlpatterns: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/usage", usage_api.AppcodeUsage.as_view()),
    path("dashboard/spending", dashboards_api.Spending.as_view()),
    path("dashboard/utilisation", dashboards_api.Utilisation.as_view()),
    path("dashboard/waste", dashboards_api.WasteOverTime.as_view()),
    path("dashboard/waste/cases", dashboards_api.WasteCases.as_view()),
    path("dashboard/waste/idle", dashboards_api.IdleTasks.as_view()),
    path("dashboard/reconciliation", dashboards_api.Reconciliation.as_view()),
    path("dashboard/reconciliation/without-end", dashboards_api.WithoutEnd.as_view()),
    path("dashboard/reconciliation/flagged", dashboards_api.Flagged.as_view()),
    path("dashboard/reconciliation/corrections", dashboards_api.Corrections.as_view()),
    path("dashboard/reconciliation/quarantine", dashboards_api.Quarantine.as_view()),
    path("segments/<int:pk>", dashboards_api.OneSegment.as_view()),
    path("exports/focus", exports_api.FocusExport.as_view()),
    path("prices", prices_api.Prices.as_view()),
    path("prices/<int:pk>", prices_api.OnePrice.as_view()),
    path("prices/preview", prices_api.PriceEffect.as_view()),
    path("prices/file", prices_api.PriceFile.as_view()),
    path("discounts", prices_api.Discounts.as_view()),
    path("discounts/<int:pk>", prices_api.OneDiscount.as_view()),
    path("appcodes/<slug:code>/credits", accounts_api.AppcodeCredits.as_view()),
    path("invoices", invoices_api.Invoices.as_view()),
    path(INVOICE, invoices_api.OneInvoice.as_view()),
    path(f"{INVOICE}/pdf", invoices_api.InvoicePdf.as_view()),
    path(f"{INVOICE}/csv", invoices_api.InvoiceCsv.as_view()),
    path(f"{INVOICE}/document", invoices_api.InvoiceCanonical.as_view()),
    path(f"{INVOICE}/lines/<int:place>/entries", invoices_api.InvoiceLineEntries.as_view()),
    path(f"{INVOICE}/credit-notes", invoices_api.CreditNotes.as_view()),
    path("invoicing", invoices_api.InvoicingView.as_view()),
    path("months", invoices_api.Months.as_view()),
    path("months/<month:month>/close", invoices_api.CloseMonth.as_view()),
    path("budgets", budgets_api.Budgets.as_view()),
    path("budgets/<int:pk>", budgets_api.OneBudget.as_view()),
    path("budgets/<int:pk>/steps", budgets_api.BudgetSteps.as_view()),
    path("budgets/<int:pk>/lift", budgets_api.LiftBudget.as_view()),
    path("budgets/<int:pk>/pause", budgets_api.PauseBudget.as_view()),
]
