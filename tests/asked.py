"""A template that asks one of our objects for something that it does not have fails its test: Django takes it for empty, so a
renamed or misspelt attribute would go unnoticed. Names of the context and keys of dictionaries may be missing; many are optional.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.forms import BaseForm
from django.template.base import Variable, VariableDoesNotExist

OURS = ("portal.", "billing.", "clusters.", "datastores.")


def strict(resolve: Callable[[Variable, Any], Any]) -> Callable[[Variable, Any], Any]:
    """Wraps the look-up of a template's variable. Forms may lack fields."""

    def resolved(variable: Variable, context: Any) -> Any:
        try:
            return resolve(variable, context)
        except VariableDoesNotExist as error:
            missing, holder = error.params
            if type(holder).__module__.startswith(OURS) and not isinstance(holder, BaseForm):
                name = context.template_name
                sentence = f"{name} asks for {variable.var}, and {type(holder).__name__} has no {missing}."
                raise AssertionError(sentence) from error
            raise

    return resolved
