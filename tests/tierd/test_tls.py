# SPDX-License-Identifier: Apache-2.0
"""A head behind TLS: whoever checks its certificate gets answers, and nobody else gets to send a token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from system_tools import run_tool
from tierd_processes import ADMIN, Process
from typer.testing import CliRunner

from slacktier.api import SeedSpec
from slacktier.errors import ConfigError
from slacktier_binding.client import TierdAddress, TierdClient, TierdUnreachableError
from slacktier_cli.main import app


def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    run_tool(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
        "-subj", "/CN=tierd", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate,
    )  # fmt: skip
    return certificate, key


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tls")
    (found / "tokens").write_text(f"admin me {ADMIN}\n")
    (found / "tokens").chmod(0o600)
    (found / "admin.token").write_text(ADMIN)
    return found


@pytest.fixture(scope="module")
def head(directory: Path) -> Iterator[Process]:
    certificate, key = make_certificate(directory, "head")
    process = Process(directory, "head", [
        "tierd", "--token-file", "tokens", "--state", "state.sqlite", "--port", "0", "--json", "--run-dir", "run",
        "--tls-cert", str(certificate), "--tls-key", str(key), "--stop-memory-nodes",
    ])  # fmt: skip
    yield process
    process.end()


def client(head: Process, directory: Path, ca_file: Path | None) -> TierdClient:
    return TierdClient(TierdAddress(head.url, directory / "admin.token", "prefill-0", ca_file))


def test_client_that_knows_the_certificate_changes_and_reads(head: Process, directory: Path) -> None:
    assert head.url.startswith("https://127.0.0.1:")
    known = client(head, directory, directory / "head.crt")
    known.put_seed(SeedSpec(host="127.0.0.1", port=9000, token="ab" * 32, layers=(1, 14)))
    (seed,) = known.everything()["seeds"]
    assert seed["name"] == "prefill-0"
    assert "ab" * 32 not in str(seed)


@pytest.mark.parametrize("ca", ["another's", "the system's"])
def test_client_that_cannot_check_the_certificate_sends_nothing(head: Process, directory: Path, ca: str) -> None:
    ca_file = make_certificate(directory, "other")[0] if ca == "another's" else None
    with pytest.raises(TierdUnreachableError, match="certificate verify failed"):
        client(head, directory, ca_file).everything()


def test_plain_http_gets_no_answer(head: Process) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(head.url.replace("https://", "http://") + "/healthz", timeout=5, trust_env=False)


@pytest.mark.parametrize(
    ("wrong", "reason"), [("key", "KEY_VALUES_MISMATCH"), ("certificate", "NO_START_LINE|PEM"), ("passphrase", "PEM")]
)
def test_a_certificate_and_a_key_that_do_not_fit_are_one_clear_line(tmp_path: Path, wrong: str, reason: str) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    if wrong == "key":
        _, key = make_certificate(tmp_path, "other")
    elif wrong == "certificate":
        certificate.write_text("no certificate")
    else:
        locked = tmp_path / "locked.key"
        run_tool("openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked)
        key = locked
    (tmp_path / "tokens").write_text(f"admin me {ADMIN}\n")
    (tmp_path / "tokens").chmod(0o600)
    found = CliRunner().invoke(
        app, ["tierd", "--token-file", str(tmp_path / "tokens"), "--tls-cert", str(certificate), "--tls-key", str(key)]
    )
    assert isinstance(found.exception, ConfigError)
    assert re.search(rf"--tls-cert .* with --tls-key .*: .*({reason})", str(found.exception))
