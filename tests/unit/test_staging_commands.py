# SPDX-License-Identifier: Apache-2.0
"""`make-checkpoint`, `stage` and `verify` as a person runs them: exit codes, one line per refusal, --json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from region_fixtures import V41_TINY, v41_tensors, write_safetensors


@pytest.fixture
def checkpoint(tmp_path: Path, slacktier: Any) -> Path:
    (tmp_path / "tiny.json").write_text(json.dumps(V41_TINY))
    directory = tmp_path / "ck"
    code, _, _ = slacktier(
        "make-checkpoint", directory, "--config", tmp_path / "tiny.json", "--rows", 30_000, "--seed", 4
    )
    assert code == 0
    return directory


def test_from_nothing_to_a_verified_region(tmp_path: Path, checkpoint: Path, slacktier: Any) -> None:
    target = tmp_path / "t.region"
    code, out, _ = slacktier("stage", checkpoint, "--layer", 1, "--target", target, "--json")
    report = json.loads(out)
    assert (code, report["outcome"], report["layer_id"]) == (0, "staged", 1)
    assert report["bytes_written"] == report["phases"]["verify"]["bytes"] + 3 * 2 * 4096  # begun, watermark, complete
    code, out, _ = slacktier("stage", checkpoint, "--layer", 1, "--target", target)
    assert (code, "wrote 0 bytes" in out) == (0, True)
    code, out, _ = slacktier("verify", target, "--check-pattern", "--json")
    found = json.loads(out)
    assert (code, found["fault_count"], found["state"], found["pattern_checked"]) == (0, 0, "complete", True)


def test_fault_is_listed_and_exit_code_is_1(tmp_path: Path, checkpoint: Path, slacktier: Any) -> None:
    target = tmp_path / "t.region"
    slacktier("stage", checkpoint, "--layer", 1, "--target", target)
    with target.open("r+b") as file:
        file.seek(5 * 4096 + 20)
        file.write(b"\xff\xff")
    code, out, _ = slacktier("verify", target)
    assert code == 1
    assert "layer 1 page 3 row" in out.splitlines()[0]
    assert "1 fault:" in out.splitlines()[-1]
    code, out, _ = slacktier("verify", target, "--json")
    assert (code, json.loads(out)["fault_count"]) == (1, 1)


def refuse(slacktier: Any, *arguments: object) -> str:
    """The one line of a refusal (its hint left out)."""
    code, out, err = slacktier(*arguments)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0].startswith("slacktier: ")
    assert len(lines) == 1 + lines[-1].startswith("hint: ")
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stage"], "where to? --target"),
        (["stage", "--target", "t.region"], "stage what?"),
        (["stage", "none", "--target", "t.region"], "none: no such file or directory"),
        (["stage", "ck", "--target", "t.region"], "which layer? it has tables of [1, 14]"),
        (["stage", "ck", "--layer", "2", "--target", "t.region"], "no tensor 'layers.2.engram.embed.weight'"),
        (["stage", "ck", "--synthetic", "v41", "--layer", "1", "--target", "t"], "no checkpoint"),
        (["stage", "--synthetic", "v42", "--layer", "1", "--target", "t"], "synthetic table 'v42'"),
        (["stage", "--synthetic", "v41", "--layer", "2", "--target", "t"], "no released row count for layer 2"),
        (["stage", "--synthetic", "raw", "--layer", "1", "--target", "t"], "synthetic table 'raw'"),
        (["stage", "ck", "--layer", "1", "--target", "tiny.json"], "carries no superblock of ours"),
        (["stage", "ck", "--layer", "1", "--target", "t", "--partial-rows", "tiny.json"], "not an .npy array"),
        (["stage", "ck", "--layer", "1", "--target", "/dev/none"], "no such device"),
        (["stage", "ck", "--layer", "1", "--target", "t", "--tensor", "x", "--payload-bytes", "4"], "no tensor 'x'"),
        (["verify", "tiny.json"], "tiny.json: no region: it carries no superblock"),
        (["measure", "reads", "tiny.json"], "tiny.json: no region"),
        (["serve", "--layer", "1=nvme:tiny.json", "--layer", "14=nvme:tiny.json"], "tiny.json: no region"),
        (["verify", "none.region"], "none.region: no such file or device"),
        (["make-checkpoint", "new"], "how large?"),
        (["make-checkpoint", "new", "--size", "many"], "size 'many'"),
        (["make-checkpoint", "new", "--size", "1G", "--dtype", "bf16"], "V4.1 tables are fp8"),
        (["make-checkpoint", "new", "--rows", "10"], "no table fits"),
        (["stage", "ck", "--layer", "1", "--target", ""], "--target '': is empty"),
        (["stage", "ck", "--layer", "1", "--target", "t", "--partial-rows", "objects.npy"], "objects.npy: not an .npy"),
        (["stage", "ck", "--layer", "1", "--target", "t", "--partial-rows", "empty.npy"], "empty.npy: not an .npy"),
        (["stage", "ck", "--layer", "1", "--target", "t", "--partial-rows", "none.npy"], "none.npy: No such file"),
        (["hash", "--model", "ck", "--tokens", "1"], "model config ck: Is a directory"),
        (["hash", "--model", "nan.json", "--tokens", "1"], "model config nan.json: NaN is no number"),
        (["hash", "--model", "empty.json", "--tokens", "1"], "empty.json: model config: no n-gram tables"),
        (
            ["serve", "--config", "empty.json", "--layer", "1=nvme:t", "--layer", "14=nvme:t"],
            "empty.json: model config",
        ),
        (["characterize", "ck"], "trace ck: not a regular file"),
        (["make-checkpoint", "ck", "--size", "1G"], "exists; nothing is written over"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path,
    checkpoint: Path,
    slacktier: Any,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    Path("empty.npy").touch()
    Path("empty.json").write_text("{}")
    Path("nan.json").write_text(json.dumps(V41_TINY | {"engram_vocab_size": float("nan")}))
    before = sorted(tmp_path.rglob("*"))
    line = refuse(slacktier, *arguments)
    assert message in line
    assert not {"pickle", "Errno"} & set(re.findall("[A-Za-z]+", line))
    assert sorted(tmp_path.rglob("*")) == before


def test_pointer_and_truncated_shard_leave_no_target(tmp_path: Path, slacktier: Any) -> None:
    pointer = tmp_path / "p.safetensors"
    pointer.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 99\n")
    cut = write_safetensors(tmp_path / "c.safetensors", v41_tensors(1, 50))
    cut.write_bytes(cut.read_bytes()[:-1])
    assert "a Git LFS pointer" in refuse(slacktier, "stage", pointer, "--layer", 1, "--target", tmp_path / "t.region")
    assert "truncated" in refuse(slacktier, "stage", cut, "--layer", 1, "--target", tmp_path / "t.region")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.safetensors", "p.safetensors"]


def test_partial_rows_of_a_full_size_table(tmp_path: Path, slacktier: Any) -> None:
    np.save(tmp_path / "rows.npy", np.array([5, 384_006_167]))
    target = tmp_path / "t.region"
    arguments = ("stage", "--synthetic", "v41", "--layer", 1, "--partial-rows", tmp_path / "rows.npy")
    code, out, _ = slacktier(*arguments, "--target", target, "--json")
    assert (code, json.loads(out)["pages_staged"]) == (0, 2)
    assert "it is not served" in refuse(slacktier, "verify", target)
    assert slacktier("verify", target, "--allow-partial", "--check-pattern")[0] == 0


def test_any_width_from_the_command_line(tmp_path: Path, slacktier: Any) -> None:
    target = tmp_path / "t.region"
    arguments = (
        "stage",
        "--synthetic",
        "raw",
        "--payload-bytes",
        100,
        "--scale-bytes",
        4,
        "--rows",
        3000,
        "--layer",
        3,
    )
    code, out, _ = slacktier(*arguments, "--target", target)
    assert (code, "layer 3 complete" in out) == (0, True)
    assert slacktier("verify", target, "--check-pattern")[0] == 0


@pytest.mark.parametrize("name", ["make-checkpoint", "stage", "verify"])
def test_help_has_examples(slacktier: Any, name: str) -> None:
    code, out, _ = slacktier(name, "--help")
    assert code == 0
    assert "Examples:" in out
    assert f"slacktier {name}" in out


def test_bench_without_fio_says_how_to_get_it(tmp_path: Path, slacktier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = slacktier("bench", "stage", "--dir", tmp_path)
    assert (code, err) == (2, "slacktier: fio is not installed\nhint: apt-get install fio\n")


@pytest.mark.parametrize("name", ["model-00001-of-00001.safetensors", "config.json", "tokenizer.txt"])
@pytest.mark.parametrize("link", ["", "hard", "symbolic"])
def test_file_of_the_source_is_never_formatted(
    tmp_path: Path, checkpoint: Path, slacktier: Any, name: str, link: str
) -> None:
    (checkpoint / "tokenizer.txt").write_text("any other file of the checkpoint")
    file = next(checkpoint.glob("*.safetensors")) if name.endswith(".safetensors") else checkpoint / name
    before, target = {path: path.read_bytes() for path in checkpoint.iterdir()}, file
    if link:
        target = tmp_path / "link"
        target.hardlink_to(file) if link == "hard" else target.symlink_to(file)
    for source in (checkpoint, next(checkpoint.glob("*.safetensors"))):
        for flag in ("--format", "--restage"):
            arguments = ("stage", source, "--layer", 1, "--target", tmp_path / "first", "--target", target, flag)
            assert "is a file of the checkpoint that is staged" in refuse(slacktier, *arguments)
    assert {path: path.read_bytes() for path in checkpoint.iterdir()} == before
    assert not (tmp_path / "first").exists()


def test_region_beside_the_checkpoints_files_can_be_staged_again(checkpoint: Path, slacktier: Any) -> None:
    target = checkpoint / "t.region"
    assert slacktier("stage", checkpoint, "--layer", 1, "--target", target)[0] == 0
    code, out, _ = slacktier("stage", checkpoint, "--layer", 1, "--target", target, "--format")
    assert (code, "wrote 0 bytes" in out) == (0, True)


def test_family_without_a_layout_is_not_offered(slacktier: Any) -> None:
    code, _, err = slacktier("make-checkpoint", "new", "--size", "1G", "--family", "raw")
    assert code == 2
    assert "'raw' is not one of" in " ".join(err.split())
    assert "raw" not in slacktier("make-checkpoint", "--help")[1]
