# SPDX-License-Identifier: Apache-2.0
"""`python -m sglang.launch_server` for a vision-language architecture whose checkpoint has no image processor.

Which is why multimodal input is turned off, by the server's arguments: there is no flag for it. The rest is as
sglang/launch_server.py does it.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    from sglang.srt.plugins import load_plugins

    load_plugins()

    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    arguments = prepare_server_args(sys.argv[1:])
    arguments.enable_multimodal = False
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
