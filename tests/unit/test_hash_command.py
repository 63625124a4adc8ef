# SPDX-License-Identifier: Apache-2.0
"""`slacktier hash`: sources of tokens, the bounded table, JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from row_id_models import ENGRAM_CONFIG, PLE_CONFIG, ple_hasher
from small_tokenizer import TEXT, write_small_tokenizer
from typer.testing import CliRunner

from slacktier.errors import ConfigError
from slacktier_cli.commands import hash as hash_command
from slacktier_cli.main import app
from slacktier_rowids.engram import scaled_config
from slacktier_rowids.models import load_hasher
from slacktier_rowids.tokenizer import TextTokenizer
from slacktier_rowids.tokenmap import build_token_map


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token-map cache of these tests lies in a home of their own."""
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def ple_config(tmp_path: Path) -> str:
    path = tmp_path / "ple.json"
    path.write_text(json.dumps(PLE_CONFIG))
    return str(path)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_small_tokenizer(tmp_path)


@pytest.fixture
def engram_config(tmp_path: Path, tokenizer: Path) -> str:
    compressed = int(build_token_map(TextTokenizer.from_file(tokenizer)).max()) + 1
    config = {**ENGRAM_CONFIG, "engram_compressed_vocab_size": compressed, "image_token_id": None}
    path = tmp_path / "engram.json"
    path.write_text(json.dumps(scaled_config(config, 100)))
    return str(path)


def run(*arguments: str, stdin: str | bytes | None = None) -> str:
    """The command's standard output; what it raises comes out as it is."""
    result = CliRunner().invoke(app, ["hash", *arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str, stdin: str | bytes | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        run(*arguments, stdin=stdin)
    return str(caught.value)


def test_json_holds_every_row_id(ple_config: str) -> None:
    tokens = list(range(40)) * 5
    found = json.loads(run("--model", ple_config, "--tokens", ",".join(map(str, tokens)), "--json"))
    rows = ple_hasher().sequence(tokens)
    assert found["tokens"] == tokens
    assert found["positions"] == list(range(200))
    assert [layer["layer_id"] for layer in found["layers"]] == [2, 5]
    assert [layer["row_ids"] for layer in found["layers"]] == [rows[:, 0].tolist(), rows[:, 1].tolist()]


def test_step_gives_the_last_tokens_rows(ple_config: str) -> None:
    arguments = ("--model", ple_config, "--tokens", "9 8 7 6 5 4", "--json")
    whole, step = json.loads(run(*arguments)), json.loads(run(*arguments, "--step"))
    assert step["positions"] == [5]
    assert [layer["row_ids"] for layer in step["layers"]] == [layer["row_ids"][-1:] for layer in whole["layers"]]


def test_layer_chooses_the_layers(ple_config: str) -> None:
    found = json.loads(run("--model", ple_config, "--tokens", "1", "--layer", "5", "--json"))
    assert [layer["layer_id"] for layer in found["layers"]] == [5]
    assert "layer 3: this layer has no table" in refused("--model", ple_config, "--tokens", "1", "--layer", "3")


def test_table_is_bounded_and_says_what_it_leaves_out(ple_config: str) -> None:
    output = run("--model", ple_config, "--tokens", " ".join(["7"] * 100), "--limit", "3")
    assert output.count("position ") == 3
    assert output.splitlines()[-1].startswith("97 tokens (1,552 row ids) not shown")
    assert "not shown" not in run("--model", ple_config, "--tokens", "7 7 7", "--limit", "3")


def test_table_shows_the_ids_of_each_order(ple_config: str) -> None:
    rows = ple_hasher().sequence([11, 12]).tolist()
    shown = [
        line.split()[3:] for line in run("--model", ple_config, "--tokens", "11,12").splitlines() if "gram" in line
    ]
    expected = [layer[order * 4 : order * 4 + 4] for token in rows for layer in token for order in range(2)]
    assert shown == [[str(row) for row in heads] for heads in expected]


def test_ids_from_a_file_and_from_standard_input(ple_config: str, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("1, 2,3\n4\t5\n")
    expected = run("--model", ple_config, "--tokens", "1,2,3,4,5")
    assert run("--model", ple_config, "--file", str(tmp_path / "ids.txt"), "--as-tokens") == expected
    assert run("--model", ple_config, "-", "--as-tokens", stdin="1 2 3 4 5\n") == expected


def test_text_goes_through_the_named_tokenizer(engram_config: str, tokenizer: Path, tmp_path: Path) -> None:
    arguments = ("--model", engram_config, "--tokenizer", str(tokenizer))
    (tmp_path / "text.txt").write_text(TEXT)
    found = json.loads(run(*arguments, "--text", TEXT, "--json"))
    assert found["tokens"] == TextTokenizer.from_file(tokenizer).encode(TEXT)
    assert found == json.loads(run(*arguments, "--file", str(tmp_path / "text.txt"), "--json"))
    assert found == json.loads(run(*arguments, "-", "--json", stdin=TEXT))
    rows = load_hasher(json.loads(Path(engram_config).read_text()), tokenizer=tokenizer).sequence(found["tokens"])
    assert [layer["row_ids"] for layer in found["layers"]] == [rows[:, index].tolist() for index in range(3)]
    assert "' main'" in run(*arguments, "--text", "def main", "--limit", "99")


def test_compressed_vocabulary_of_another_tokenizer_is_refused(tokenizer: Path) -> None:
    assert "engram_compressed_vocab_size is 99092" in refused("--tokenizer", str(tokenizer), "--tokens", "1")


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        ("1,40", "token 1: id 40 is outside the vocabulary 0 to 39"),
        ("-1", "token 0: id -1 is outside"),
        ("3,-1,4", "token 1: id -1 is outside"),
        ("1,two", "token 1: 'two' is not a token id"),
        ("1,,2", "token 1: '' is not a token id"),
        ("1.5", "token 0: '1.5' is not a token id"),
        ("9" * 30, "is not a token id"),
        ("", "is not a token id"),
        ("\u0661", "is not a token id"),
    ],
)
@pytest.mark.parametrize("step", [(), ("--step",)])
def test_bad_token_is_named(tokens: str, complaint: str, step: Any, ple_config: str) -> None:
    assert complaint in refused("--model", ple_config, f"--tokens={tokens}", *step)


def test_bad_sources_are_refused(ple_config: str, tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes(b"\xe9t\xe9")
    model = ("--model", ple_config)
    assert "0 inputs, expected one of" in refused(*model)
    assert "2 inputs, expected one of" in refused(*model, "--tokens", "1", "--text", "x")
    assert "only - is known" in refused(*model, "hello")
    assert "--as-tokens goes with" in refused(*model, "--text", "1", "--as-tokens")
    assert "not UTF-8 text" in refused(*model, "--file", str(tmp_path / "latin1"))
    assert "not UTF-8 text" in refused(*model, "-", stdin=b"\xff")
    assert "No such file" in refused(*model, "--file", str(tmp_path / "none"))
    assert "Is a directory" in refused(*model, "--file", str(tmp_path))
    assert "needs its tokenizer" in refused(*model, "--text", "x")


def test_empty_text_is_refused(engram_config: str, tokenizer: Path) -> None:
    assert "the input is empty" in refused("--model", engram_config, "--tokenizer", str(tokenizer), "--text", "")


def test_bad_input_ends_in_one_line_and_exit_code_2(ple_config: str, slacktier: Any) -> None:
    code, out, err = slacktier("hash", "--model", ple_config, "--tokens", "x")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == "slacktier: token 0: 'x' is not a token id"


def test_endless_input_is_refused(ple_config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_command, "_INPUT_BYTES_MAX", 1 << 20)
    arguments = ("--model", ple_config, "--as-tokens")
    assert refused(*arguments, "--file", "/dev/zero") == "/dev/zero: more than 1 MiB"
    assert refused(*arguments, "-", stdin=b"1 " * (1 << 20)) == "standard input: more than 1 MiB"


def test_text_that_is_not_utf_8_is_refused(engram_config: str, tokenizer: Path) -> None:
    arguments = ("--model", engram_config, "--tokenizer", str(tokenizer))
    assert refused(*arguments, "--text", "ab\udcff") == "--text: not UTF-8 text at character 2"
