# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's tokenizer files: the tests' small byte-level tokenizer, in the form that an engine loads."""

from __future__ import annotations

import tempfile
from pathlib import Path

from small_tokenizer import write_small_tokenizer
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def write_tokenizer(checkpoint: Path) -> PreTrainedTokenizerFast:
    with tempfile.TemporaryDirectory() as folder:
        file = write_small_tokenizer(Path(folder))
        special = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos")}
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), **special)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(checkpoint)
    return tokenizer
