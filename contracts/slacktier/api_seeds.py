# SPDX-License-Identifier: Apache-2.0
"""Seeds: rows that a prefill instance keeps for a request, and where its decode instance pulls them from.

The bytes never pass through tierd. It only tells a decode instance the address of the prefill side's row server; both
must be bound instances.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slacktier.api_model import LAYERS_MAX, Count, Hex, Host, LayerId, Name, Part, Port


class SeedSpec(Part):
    """A seed server of one prefill instance; the resource has the instance's name.

    host, port  where it listens; token (hex): what a decode instance proves that it knows
    layers      the layers whose rows it keeps
    """

    host: Host
    port: Port
    token: Annotated[Hex, Field(min_length=32)]
    layers: Annotated[tuple[LayerId, ...], Field(min_length=1, max_length=LAYERS_MAX)]


class SeedStatus(Part):
    observed_generation: Count = 0


class SeedPublic(Part):
    """What a list shows of a seed server: no address and no token."""

    layers: tuple[LayerId, ...]


class SeedAccess(Part):
    """What a bound decode instance is told: the seed server of one prefill instance."""

    instance: Name
    version: Count
    seed: SeedSpec
