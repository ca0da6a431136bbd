"""The base of commands whose `--help` shows examples."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, DjangoHelpFormatter


class _Formatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Argparse joins the lines of a description into one paragraph, which makes examples unreadable."""


class DescribedCommand(BaseCommand):
    """Shows `help` as it is written, line by line."""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=_Formatter, **kwargs)
