# SPDX-License-Identifier: Apache-2.0
"""Specs that the API server let through but that the models refuse: one clear sentence for a condition."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from slacktier.input_errors import config_error


def invalid(exc: ValidationError, model: type[BaseModel]) -> str:
    """The first fault, with its field."""
    error = config_error(exc, model, "spec")
    return f"{error} ({error.hint})" if error.hint else str(error)
