# SPDX-License-Identifier: Apache-2.0
"""The custom resources of `slacktier.dev/v1alpha1`, all four."""

from __future__ import annotations

from typing import Final

from slacktier.crd_binding import TableBinding
from slacktier.crd_model import CustomResource
from slacktier.crd_placement import TablePlacement
from slacktier.crd_pool import TierPool
from slacktier.crd_table import LookupTable

RESOURCES: Final[tuple[type[CustomResource], ...]] = (LookupTable, TierPool, TablePlacement, TableBinding)
