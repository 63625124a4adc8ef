# SPDX-License-Identifier: Apache-2.0
"""LookupTable: each of its layers is a table at tierd; the status is what tierd read in the source."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from slacktier.api import CheckpointSource, Kind, SyntheticSource, TableSpec, TableStatus
from slacktier.crd_model import bytes_quantity
from slacktier.crd_table import LookupTable, LookupTableSpec, LookupTableStatus, TableLayerStatus
from slacktier_operator.context import Context
from slacktier_operator.names import Key, table_name
from slacktier_operator.status import merged
from slacktier_operator.validation import invalid

KIND = LookupTable.kind
_POLL_S = 5.0


async def reconcile(context: Context, key: Key) -> float | None:
    """Observe, apply, report; nothing here is to be decided."""
    body = context.store.get(KIND, key)
    if body is None or body["metadata"].get("deletionTimestamp"):
        await _forget(context, key)
        return None
    before = LookupTableStatus.model_validate(body.get("status") or {})
    try:
        spec = LookupTableSpec.model_validate(body["spec"])
    except ValidationError as exc:
        await context.report(LookupTable, key, body, _status(context, body, before, [], invalid(exc, LookupTableSpec)))
        return None
    layers = []
    for layer_id in spec.layers:
        item = await context.put(
            Kind.TABLES, table_name(key, layer_id), table_spec(context, spec, layer_id), (KIND, key)
        )
        layers.append(_layer(layer_id, item))
    await context.report(LookupTable, key, body, _status(context, body, before, layers, None))
    return None if all(layer.rows for layer in layers) else _POLL_S


def table_spec(context: Context, spec: LookupTableSpec, layer_id: int) -> TableSpec:
    """One layer as tierd's table."""
    source = spec.source
    if source.synthetic is not None:
        synthetic = SyntheticSource(shape=spec.family.value, rows=source.synthetic.rows, seed=source.synthetic.seed)
        return TableSpec(layer_id=layer_id, synthetic=synthetic, model=spec.model, revision=spec.revision)
    path = source.path or ""
    if source.persistent_volume_claim is not None:
        claim = source.persistent_volume_claim
        path = str(PurePosixPath(context.settings.sources_path, claim.claim_name, claim.path or ""))
    checkpoint = CheckpointSource(path=path, family=spec.family.value)
    return TableSpec(layer_id=layer_id, checkpoint=checkpoint, model=spec.model, revision=spec.revision)


def _layer(layer_id: int, item: dict[str, Any]) -> TableLayerStatus:
    status = TableStatus.model_validate(item["status"])
    return TableLayerStatus(
        layer_id=layer_id, table=item["name"], rows=status.rows, row_bytes=status.row_bytes,
        region_bytes=status.region_bytes, digest=status.digest,
    )  # fmt: skip


def _status(
    context: Context, body: Any, before: LookupTableStatus, layers: list[TableLayerStatus], fault: str | None
) -> LookupTableStatus:  # fmt: skip
    generation = body["metadata"].get("generation", 0)
    read = bool(layers) and all(layer.rows for layer in layers)
    if fault is not None:
        found = ("Ready", False, "InvalidSpec", fault)
    elif read:
        found = ("Ready", True, "SourceRead", f"{len(layers)} layer(s) read from the source's headers")
    else:
        unread = next((layer for layer in layers if not layer.rows), None)
        said = _said(context, unread.table) if unread else ""
        found = ("Ready", False, "SourceNotRead", said or "tierd has not read the source yet")
    return LookupTableStatus(
        observed_generation=generation,
        conditions=merged(before.conditions, [found], generation, context.now_s()),
        rows=sum(layer.rows for layer in layers),
        size=bytes_quantity(sum(layer.region_bytes for layer in layers)) if read else "",
        digest=layers[0].digest if layers else "",
        layers=tuple(layers),
    )


def _said(context: Context, table: str) -> str:
    """tierd's own words on a table."""
    item = context.state.get(Kind.TABLES, table)
    conditions = item["status"].get("conditions", []) if item else []
    return next((each["message"] for each in conditions if each["status"] != "True" and each["message"]), "")


async def _forget(context: Context, key: Key) -> None:
    """The object is gone: so are its tables at tierd, once no placement has a copy of them."""
    prefix = f"{key.namespace}.{key.name}.l"
    for name in [n for n in context.state.items[Kind.TABLES] if n.startswith(prefix)]:
        used = any(item["spec"]["table"] == name for item in context.state.items[Kind.REPLICAS].values())
        if used:
            context.queue.add_after((KIND, key), _POLL_S)
        elif name.removeprefix(prefix).isdigit():
            await context.delete(Kind.TABLES, name, (KIND, key))
