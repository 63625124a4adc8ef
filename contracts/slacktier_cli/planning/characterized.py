# SPDX-License-Identifier: Apache-2.0
"""Miss curves that `slacktier characterize --json` measured, as a plan file's `misses` takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slacktier.errors import ConfigError
from slacktier.input_errors import config_error
from slacktier.read_model_file import Count, Number

POLICY_DEFAULT: Final = "clock"  # what the row cache does


class CurveFile(BaseModel):
    """In a plan file: which of the curves of a characterization."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    layer: Number | None = None
    policy: str = POLICY_DEFAULT


class _Curve(BaseModel):
    """One of a characterization's miss_curves; what else it holds does not matter here."""

    layer_id: Number
    sessions: Count
    policy: str
    tp: Count
    points: list[tuple[Number, Number]] = Field(min_length=1)


class _Characterization(BaseModel):
    miss_curves: list[_Curve]


def miss_specs(directory: Path, wanted: CurveFile, ranks: int) -> list[dict[str, Any]]:
    """`misses` entries, one per number of sessions, for a plan with so many ranks.

    A row belongs to rank (row id mod ranks), so each rank has an equal part of the cache and of the pages, and curves
    measured for one number of ranks give those of another.
    """
    path = directory / wanted.file
    curves = [curve for curve in _read(path) if wanted.layer in (None, curve.layer_id)]
    if not curves:
        of_layer = "" if wanted.layer is None else f" of layer {wanted.layer:g}"
        raise ConfigError(f"{path}: no miss curve{of_layer}")
    policies = sorted({curve.policy for curve in curves})
    chosen = {curve.sessions: curve for curve in reversed(curves) if curve.policy == wanted.policy}
    if not chosen:
        raise ConfigError(f"{path}: no miss curve of policy {wanted.policy!r}, only {', '.join(policies)}")
    return [
        {
            "sessions": sessions,
            "pages": {int(rows * curve.tp / ranks): pages * curve.tp / ranks for rows, pages in curve.points},
        }
        for sessions, curve in sorted(chosen.items())
    ]


def _read(path: Path) -> list[_Curve]:
    try:
        return _Characterization.model_validate(json.loads(path.read_bytes())).miss_curves
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc
    except ValidationError as exc:
        raise config_error(exc, _Characterization, str(path)) from exc
    except ValueError as exc:
        raise ConfigError(f"{path}: not JSON: {exc}", hint="`slacktier characterize TRACE --json` writes it") from exc
