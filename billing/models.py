"""All models of billing, for Django and for other apps; rooms import their own `models.py`.

Billing knows appcodes but no clusters: what used a GPU is described by copied labels and by `consumer`, an opaque key
of the caller ("run 17"), so that names survive the deletion of what they name.
"""

from __future__ import annotations

from billing.accounts.models import Credit as Credit
from billing.budgets.models import Budget as Budget
from billing.budgets.models import BudgetStep as BudgetStep
from billing.efficiency.models import CapacityRecord as CapacityRecord
from billing.efficiency.models import MeasuredDay as MeasuredDay
from billing.efficiency.models import MeasuredHour as MeasuredHour
from billing.efficiency.models import Measuring as Measuring
from billing.efficiency.models import Outcome as Outcome
from billing.efficiency.models import Waste as Waste
from billing.efficiency.models import Watermark as Watermark
from billing.invoices.models import Closing as Closing
from billing.invoices.models import CreditNote as CreditNote
from billing.invoices.models import Invoice as Invoice
from billing.invoices.models import InvoiceCredit as InvoiceCredit
from billing.invoices.models import InvoiceLine as InvoiceLine
from billing.ledger.models import DailyUsage as DailyUsage
from billing.ledger.models import Due as Due
from billing.ledger.models import LedgerEntry as LedgerEntry
from billing.ledger.models import MonthlyUsage as MonthlyUsage
from billing.mails import Mail as Mail
from billing.metering.models import Observation as Observation
from billing.metering.models import Quarantined as Quarantined
from billing.metering.models import UsageSegment as UsageSegment
from billing.prices.models import Discount as Discount
from billing.prices.models import Ownership as Ownership
from billing.prices.models import Price as Price
from billing.sums.models import DecayedUse as DecayedUse
from billing.sums.models import GpuCounter as GpuCounter
from billing.sums.models import GpuTotal as GpuTotal
from billing.sums.models import MonthlySpending as MonthlySpending
