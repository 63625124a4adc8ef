# SPDX-License-Identifier: Apache-2.0
"""A pull, after row_handshake.py with SEED_MAGIC: a request for one layer of a room, and its rows that are there.

    request   magic u32 | count u32 | room u64 | CRC32C of the ids u32 | zero u32 | row id u32 [count], ascending
    reply     magic u32 | status u32 | room u64 | count u32 | record bytes u32 |
              present u8 [ceil(asked / 8)] | record [count]

Bit i of `present`, lowest first, says whether the record of the i-th id follows; records stand in the order of the ids.
status is 0 or an errno, and then nothing follows. All integers are little-endian. Ids travel only to say which of a
room's rows are wanted: the decode side has worked them out from the prompt.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ContractError
from slacktier_native._lib import library

REQUEST: Final = struct.Struct("<IIQII")
REPLY: Final = struct.Struct("<IIQII")
REQUEST_MAGIC: Final = 0x51534C53  # "SLSQ"
REPLY_MAGIC: Final = 0x50534C53  # "SLSP"
ROWS_MAX: Final = 1 << 20  # a prompt of 40,000 tokens in 24 columns
STATUSES: Final = (0, errno.EPROTO)


def ids_crc(ids: npt.NDArray[np.uint32]) -> int:
    return int(library().st_crc32c(0, ids.ctypes.data, ids.nbytes))


def receive(sock: socket.socket, count: int, deadline_s: float, target: str) -> npt.NDArray[np.uint8]:
    """Exactly count bytes before a time.monotonic() instant; TimeoutError or ContractError otherwise."""
    buffer = np.empty(count, np.uint8)
    view, got = buffer.data, 0
    while got < count:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"{target}: {got} of {count} bytes within the time allowed")
        sock.settimeout(left_s)
        read = sock.recv_into(view[got:])
        if read == 0:
            raise ContractError(f"{target}: closed after {got} of {count} bytes")
        got += read
    return buffer
