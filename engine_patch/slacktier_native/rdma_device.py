# SPDX-License-Identifier: Apache-2.0
"""A memory node's RDMA device through pyverbs: regions that others may read and nothing else, and queue pairs to them.

pyverbs is Debian's python3-pyverbs or the extra `slacktier[rdma]`; it is imported when a node is started, not before.
"""

from __future__ import annotations

import contextlib
import importlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from slacktier.errors import ConfigError, TierUnavailableError
from slacktier.tiers import Tier
from slacktier_native import rdma_ports
from slacktier_native.rdma_exchange import End, PortFacts, RegionFacts

PSN_BITS: Final = 24
# How long this end would wait before it says again that it is not ready; an end that is only read from never does.
MIN_RNR_TIMER: Final = 12


@dataclass(frozen=True, slots=True)
class _Pyverbs:
    """The modules in use. enums is called so by rdma-core 44, libibverbs_enums by its later releases."""

    enums: Any
    addr: Any
    cq: Any
    device: Any
    mr: Any
    pd: Any
    qp: Any


def load_pyverbs() -> _Pyverbs:
    """raises ConfigError with the remedy where pyverbs is not installed or does not fit the system's libibverbs"""

    def part(name: str) -> ModuleType:
        return importlib.import_module(f"pyverbs.{name}")

    try:
        try:
            enums = part("libibverbs_enums")
        except ModuleNotFoundError:
            enums = part("enums")
        return _Pyverbs(enums, *(part(name) for name in ("addr", "cq", "device", "mr", "pd", "qp")))
    except ImportError as exc:
        raise ConfigError(
            f"pyverbs: {exc}", hint="apt-get install python3-pyverbs, or pip install 'slacktier[rdma]'"
        ) from exc


@dataclass(slots=True)
class QueuePairs:
    """This end of one client's queue pairs; they live until close()."""

    ends: list[End]
    _pairs: list[Any]
    _completions: Any

    def close(self) -> None:
        for pair in self._pairs:
            pair.close()
        self._pairs.clear()
        self._completions.close()


class NodeDevice:
    """One port of one device, opened."""

    def __init__(self, choice: rdma_ports.Choice) -> None:
        self.choice = choice
        self._verbs = load_pyverbs()
        with self._failing("open"):
            self._context = self._verbs.device.Context(name=choice.device)
            self._domain = self._verbs.pd.PD(self._context)
            self.port = self._port_facts()

    def _failing(self, operation: str, hint: str = "") -> contextlib.AbstractContextManager[None]:
        return _as_tier_errors(operation, f"{self.choice.device} port {self.choice.port}", hint)

    def _port_facts(self) -> PortFacts:
        port = self._context.query_port(self.choice.port)
        gid = str(self._context.query_gid(self.choice.port, self.choice.gid_index))
        limits = self._context.query_device()
        return PortFacts(
            gid=gid.replace(":", ""), lid=int(port.lid), mtu=int(port.active_mtu),
            ethernet=int(port.link_layer) == int(self._verbs.enums.IBV_LINK_LAYER_ETHERNET),
            reads_max=max(1, min(255, int(limits.max_qp_rd_atom))),
        )  # fmt: skip

    def register(self, address: int, byte_count: int) -> tuple[RegionFacts, Any]:
        """Let peers read this memory and nothing else; close() of what is returned ends it at once for all of them."""
        hint = rdma_ports.memlock_hint(byte_count)
        with self._failing(f"registering {byte_count} bytes", hint):
            access = self._verbs.enums.IBV_ACCESS_REMOTE_READ
            registered = self._verbs.mr.MR(self._domain, byte_count, access, address=address)
        return RegionFacts(address=address, byte_count=byte_count, key=int(registered.rkey)), registered

    def answer(self, ends: Sequence[End], peer: PortFacts) -> QueuePairs:
        """Queue pairs to a client's, ready to be read through; this end sends nothing and completes nothing."""
        with self._failing("queue pairs"), contextlib.ExitStack() as undo:
            completions = self._verbs.cq.CQ(self._context, 1)
            pairs = QueuePairs([], [], completions)
            undo.callback(pairs.close)
            for end in ends:
                pair, own = self._answer_one(end, peer, completions)
                pairs._pairs.append(pair)
                pairs.ends.append(own)
            undo.pop_all()
            return pairs

    def _answer_one(self, end: End, peer: PortFacts, completions: Any) -> tuple[Any, End]:
        enums, qp = self._verbs.enums, self._verbs.qp
        limits = qp.QPCap(max_send_wr=1, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        wanted = qp.QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=completions, rcq=completions, cap=limits)
        pair = qp.QP(self._domain, wanted)
        own = End(number=int(pair.qp_num), first_psn=secrets.randbits(PSN_BITS))
        attributes = qp.QPAttr(port_num=self.choice.port)
        attributes.qp_access_flags = enums.IBV_ACCESS_REMOTE_READ
        pair.to_init(attributes)
        attributes = qp.QPAttr(port_num=self.choice.port)
        attributes.ah_attr = self._way_to(peer)
        attributes.dest_qp_num, attributes.rq_psn = end.number, end.first_psn
        attributes.path_mtu = min(self.port.mtu, peer.mtu)
        attributes.max_dest_rd_atomic = min(self.port.reads_max, peer.reads_max)
        attributes.min_rnr_timer = MIN_RNR_TIMER
        pair.to_rtr(attributes)
        return pair, own

    def _way_to(self, peer: PortFacts) -> Any:
        addr, number = self._verbs.addr, self.choice.port
        if not peer.ethernet:
            return addr.AHAttr(port_num=number, is_global=0, dlid=peer.lid)
        gid = ":".join(peer.gid[at : at + 4] for at in range(0, 32, 4))
        route = addr.GlobalRoute(dgid=addr.GID(gid), sgid_index=self.choice.gid_index)
        route.hop_limit = 64
        return addr.AHAttr(port_num=number, is_global=1, gr=route, dlid=0)

    def close(self) -> None:
        """After everything that was made here is closed."""
        self._domain.close()
        self._context.close()


@contextlib.contextmanager
def _as_tier_errors(operation: str, target: str, hint: str) -> Any:
    """What pyverbs raises has no type of its own: its errors carry an errno, and come from one base."""
    try:
        yield
    except Exception as exc:
        if not type(exc).__module__.startswith("pyverbs"):
            raise
        code = int(getattr(exc, "error_code", 0) or 0)
        raise TierUnavailableError(
            f"RDMA {target}: {operation} failed: {exc}",
            tier=Tier.RDMA.value, operation=operation, target=target, errno=code, hint=hint,
        ) from exc  # fmt: skip
