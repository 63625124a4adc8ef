# SPDX-License-Identifier: Apache-2.0
"""Opens what a table's spec names as its source: a checkpoint's tensors, or the test pattern."""

from __future__ import annotations

from pathlib import Path

from slacktier.api import TableSpec
from slacktier.errors import ConfigError
from slacktier_tierd.checkpoint import open_checkpoint
from slacktier_tierd.sources import RowSource, SafetensorsSource
from slacktier_tierd.synthetic import synthetic_source
from slacktier_tierd.tables import Family, RawWidths, detect_family, find_table


def open_source(spec: TableSpec) -> RowSource:
    """The rows of a table; raises ConfigError for a source that is not there or not what the spec says."""
    if spec.synthetic is not None:
        made = spec.synthetic
        return synthetic_source(
            made.shape, spec.layer_id, row_count=made.rows, user_seed=made.seed, model=spec.model,
            revision=spec.revision,
        )  # fmt: skip
    named = spec.checkpoint
    if named is None:
        raise ConfigError("the table has no source")
    checkpoint = open_checkpoint(Path(named.path))
    raw = None
    if named.tensor:
        raw = RawWidths(named.tensor, named.payload_bytes, named.scale_tensor, named.scale_bytes)
    family = Family.RAW if raw else Family(named.family) if named.family else detect_family(checkpoint)
    return SafetensorsSource(
        find_table(checkpoint, spec.layer_id, family=family, raw=raw, model=spec.model, revision=spec.revision)
    )  # fmt: skip
