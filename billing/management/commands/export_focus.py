"""Writes a month as FOCUS 1.2, entry by entry, to standard output or to a file that is complete or absent."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from billing.exports import files
from billing.exports.api import month_of
from portal.errors import Invalid
from portal.models import Appcode


class Command(BaseCommand):
    help = "Exports a month as FOCUS 1.2 (FinOps Open Cost and Usage Specification)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--month", required=True, help="Like 2026-10.")
        parser.add_argument("--format", choices=files.FORMATS, default="csv")
        parser.add_argument("--output", default="-", help="A file; standard output when absent.")
        parser.add_argument("--appcode", action="append", help="Only of this appcode; may be given several times.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            month = month_of(options["month"], timezone.now())
        except Invalid as error:
            raise CommandError("; ".join(each.message for each in error.errors)) from error
        chunks = files.chunks(month, self._appcodes(options["appcode"]), options["format"])
        if options["output"] == "-":
            for chunk in chunks:
                sys.stdout.buffer.write(chunk)
            return
        target = Path(options["output"])
        part = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with part.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
            part.replace(target)
        except OSError as error:
            raise CommandError(f"{target} cannot be written: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)

    def _appcodes(self, codes: list[str] | None) -> list[int] | None:
        if not codes:
            return None
        found = dict(Appcode.objects.filter(code__in=codes).values_list("code", "pk"))
        if missing := sorted(set(codes) - found.keys()):
            raise CommandError(f"There is no appcode {', '.join(missing)}.")
        return list(found.values())
