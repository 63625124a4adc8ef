# SPDX-License-Identifier: Apache-2.0
"""What the plugin is told: one YAML or JSON file, or the same as JSON in the environment. docs/sglang.md explains it.

Read once per process, before anything of the engine is touched. `Binding` is the part that may change at run time.
"""

from __future__ import annotations

import os
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slacktier.api import InstanceSpec
from slacktier.cache_policy import CachePolicy
from slacktier.delay import SHIPPED
from slacktier.errors import ConfigError
from slacktier.input_errors import config_error
from slacktier.tiers import REMOTE_TIERS, Tier
from slacktier_binding.client import TierdAddress
from slacktier_native.core import LayerSetup, SourceSpec
from slacktier_native.rdma import RdmaSettings, RdmaSpec, ReadUnit
from slacktier_native.row_link import TIMEOUT_S, RowsSpec, parse_address
from slacktier_native.sources import AnySource

INSTANCE_VARIABLE: Final = "SLACKTIER_INSTANCE"
_FILE_BYTES_MAX: Final = 1 << 20
Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
_Model = TypeVar("_Model", bound=BaseModel)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OnMismatch(StrEnum):
    """What a row that differs from the checkpoint does: FAIL ends the process before a token of its step is served."""

    FAIL = "fail"
    COUNT = "count"


class OnReadFailure(StrEnum):
    """What a read that fails for good does. END_REQUESTS falls back to the process where single requests cannot end."""

    END_REQUESTS = "end_requests"
    END_PROCESS = "end_process"


class RdmaPort(_Part):
    """Which port of this machine reads, and what one READ brings; default: the first active one with a usable GID."""

    device: str = ""
    port: Annotated[int, Field(ge=0, le=255)] = 0
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    unit: ReadUnit = ReadUnit.RECORD


class Source(_Part):
    """One replica of a layer's table.

    paths       nvme, dram, emulated: the region's files or devices, one per stripe
    device      emulated: name of the queue that processes share; delay: a delay model by name
    address     tcp: HOST:PORT of a row server; rdma: of a memory node; token_file: what proves to it who asks
    silent_s    tcp, rdma: a server that says nothing for so long counts as dead
    rdma        rdma: the port to read through
    """

    tier: Tier
    paths: tuple[Path, ...] = ()
    device: str = ""
    delay: str = ""
    address: str = ""
    token_file: Path | None = None
    silent_s: Annotated[float, Field(ge=0.001, le=60, allow_inf_nan=False)] = TIMEOUT_S
    rdma: RdmaPort | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Source:
        if self.tier in REMOTE_TIERS:
            if not self.address or self.token_file is None or self.paths or self.device or self.delay:
                raise ValueError(
                    f"a source of tier {self.tier.value} needs address and token_file, and nothing of the other tiers"
                )
        elif not self.paths or self.address or self.token_file:
            raise ValueError(f"a source of tier {self.tier.value} needs paths, and nothing of the other tiers")
        if self.rdma is not None and self.tier is not Tier.RDMA:
            raise ValueError(f"rdma belongs to tier rdma, this source is of tier {self.tier.value}")
        if self.delay and self.delay not in SHIPPED:
            raise ValueError(f"delay model {self.delay!r}: expected one of {', '.join(SHIPPED)}")
        try:
            self.spec(0)
        except ConfigError as exc:
            raise ValueError(str(exc)) from exc
        return self

    def spec(self, layer_id: int) -> AnySource:
        """As the lookup core takes it; raises ConfigError for what no core can open."""
        if self.token_file is not None:
            host, port = parse_address(self.address)
            if self.tier is Tier.RDMA:
                chosen = self.rdma or RdmaPort()
                settings = RdmaSettings(**dict(chosen), timeout_s=self.silent_s)
                return RdmaSpec(host, port, self.token_file, layer_id, settings=settings)
            return RowsSpec(host, port, self.token_file, layer_id, timeout_s=self.silent_s)
        return SourceSpec(self.tier, self.paths, self.device, SHIPPED.get(self.delay))


class Table(_Part):
    """One layer's table: replicas in order of preference, and its share of the row cache on each rank.

    cache_policy    clock or s3fifo; what s3fifo is worth on your traffic is what `slacktier characterize` says
    host_cache_gib  a second level of that cache in each rank's host memory, for rows that fall out of the first
    """

    layer: Annotated[int, Field(ge=0)]
    sources: Annotated[tuple[Source, ...], Field(min_length=1, max_length=4)]
    cache_rows: Annotated[int, Field(ge=0)] = 0
    cache_policy: CachePolicy = CachePolicy.CLOCK
    host_cache_gib: Annotated[float, Field(ge=0, le=4096, allow_inf_nan=False)] = 0.0

    def setup(self) -> LayerSetup:
        sources = tuple(source.spec(self.layer) for source in self.sources)
        host_cache_bytes = int(self.host_cache_gib * (1 << 30))
        return LayerSetup(self.layer, sources, self.cache_rows, host_cache_bytes, self.cache_policy)


class Reads(_Part):
    """How rows are read; the names are LookupCore's."""

    backend: Annotated[str, Field(pattern="^(auto|uring|posix)$")] = "auto"
    io_threads: Annotated[int, Field(ge=0, le=256)] = 0
    queue_depth: Annotated[int, Field(ge=1, le=4096)] = 256
    timeout_s: Seconds = 10.0


class Check(_Part):
    """The checker: a share of the steps' tokens is compared with the checkpoint's own rows.

    checkpoint  directory with the safetensors files; default: the model that the server loads. "none": never compare,
                not even at start
    """

    rate: Rate = 0.0
    checkpoint: str = ""
    on_mismatch: OnMismatch = OnMismatch.FAIL


class WeightUpdates(StrEnum):
    """What an update that carries a table does: COMPARE reads all of it and refuses other rows; TRUST believes it."""

    COMPARE = "compare"
    TRUST = "trust"


class Lossy(_Part):
    """Rows outside the seen-set are zero in these layers, and are not read. Off unless a seen-set is named."""

    seen_set: Path
    layers: Annotated[tuple[int, ...], Field(min_length=1)]


class Listen(_Part):
    """Where readiness, metrics and control are; a machine's ranks take port, port + 1, ...

    Control answers to loopback peers with the token only.

    token_file  bearer token of the control endpoint; without one there is none
    """

    host: str = "0.0.0.0"  # noqa: S104 -- kubelet and Prometheus come from outside the pod
    port: Annotated[int, Field(ge=1, le=65535)] = 9640
    token_file: Path | None = None


class Tierd(_Part):
    """Where to be told what to read from, instead of `tables`.

    instance    this server's name there; default: SLACKTIER_INSTANCE
    needs       what it says that it needs: layers with windows and miss curves, as InstanceSpec has them
    wait_s      how long a start waits for a binding
    report_s    how often the first rank reports
    """

    url: str
    token_file: Path
    needs: InstanceSpec
    instance: str = ""
    ca_file: Path | None = None
    wait_s: Seconds = 600.0
    report_s: Seconds = 10.0

    @model_validator(mode="after")
    def _names_an_address(self) -> Tierd:
        try:
            self.address()
        except ConfigError as exc:
            raise ValueError(str(exc)) from exc
        return self

    def address(self) -> TierdAddress:
        name = self.instance or os.environ.get(INSTANCE_VARIABLE, "")
        if not name:
            raise ConfigError(f"instance: name this server, here or in {INSTANCE_VARIABLE}")
        return TierdAddress(self.url, self.token_file, name, self.ca_file)


class Binding(_Part):
    """What may change without a restart, as the control file or a control request says it; absent parts stay."""

    tables: tuple[Table, ...] | None = None
    check_rate: Rate | None = None
    lossy: Lossy | None = None
    lossy_off: bool = False

    @model_validator(mode="after")
    def _is_clear(self) -> Binding:
        if self.lossy is not None and self.lossy_off:
            raise ValueError("lossy and lossy_off exclude each other")
        return self


class Settings(_Part):
    """The whole file.

    control_file     watched for changes: a Binding
    lookups_max      row ids per layer that one pass takes; larger steps are cut
    sglang_versions  further releases to accept, at your own risk
    """

    tables: tuple[Table, ...] = ()
    tierd: Tierd | None = None
    reads: Reads = Reads()
    check: Check = Check()
    listen: Listen = Listen()
    lossy: Lossy | None = None
    control_file: Path | None = None
    control_poll_s: Seconds = 1.0
    on_read_failure: OnReadFailure = OnReadFailure.END_REQUESTS
    weight_updates: WeightUpdates = WeightUpdates.COMPARE
    lookups_max: Annotated[int, Field(ge=1)] = 8192 * 24 * 2
    sglang_versions: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _says_where_tables_are(self) -> Settings:
        if bool(self.tables) == (self.tierd is not None):
            raise ValueError("expected either tables, or tierd")
        return self

    @model_validator(mode="after")
    def _names_each_layer_once(self) -> Settings:
        repeated = [layer for layer, count in Counter(table.layer for table in self.tables).items() if count > 1]
        if repeated:
            raise ValueError(f"layer {repeated[0]} stands twice in tables")
        return self


def load_settings(value: str) -> Settings:
    """Settings from a path, or from the JSON object itself; raises ConfigError, before any other I/O."""
    source, content = ("SLACKTIER_CONFIG", value) if value.lstrip().startswith("{") else (value, _read(Path(value)))
    return _parse(Settings, content, source)


def load_binding(path: Path) -> Binding:
    """A control file; raises ConfigError."""
    return parse_binding(_read(path), str(path))


def parse_binding(content: str, source: str) -> Binding:
    """A Binding from YAML or JSON text; raises ConfigError with `source` in front."""
    return _parse(Binding, content, source)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_FILE_BYTES_MAX + 1)
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}", hint="SLACKTIER_CONFIG names the plugin's file") from exc
    if len(raw) > _FILE_BYTES_MAX:
        raise ConfigError(f"{path}: more than {_FILE_BYTES_MAX} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8: {exc.reason} at byte {exc.start}") from exc


def _parse(model: type[_Model], content: str, source: str) -> _Model:
    try:
        found: Any = yaml.safe_load(content)
    except yaml.YAMLError as exc:
        first = " ".join(str(exc).split())
        raise ConfigError(f"{source}: neither YAML nor JSON: {first}") from exc
    if not isinstance(found, dict):
        raise ConfigError(f"{source}: holds a {type(found).__name__}, expected an object")
    try:
        return model.model_validate(found)
    except ValidationError as exc:
        raise config_error(exc, model, source) from exc
