#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a container image as a tarball of one layer, as `docker save` does, without a registry or a docker engine.

All files in it belong to root; modes and times are kept.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Pair = tuple[str, str]


def _pair(text: str) -> Pair:
    source, _, dest = text.partition("=")
    if not source or not dest:
        raise argparse.ArgumentTypeError(f"{text!r}: expected SRC=DEST")
    return source, dest.strip("/")


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def layer_of(files: Sequence[Pair], folders: Sequence[Pair], links: Sequence[Pair]) -> bytes:
    """One layer's tar: files and folders as (source, place), links as (place, target); parents are made."""
    out = io.BytesIO()
    made: set[str] = set()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as layer:

        def parents(dest: str) -> None:
            for parent in [str(path) for path in Path(dest).parents][::-1]:
                if parent != "." and parent not in made:
                    made.add(parent)
                    entry = tarfile.TarInfo(parent)
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    layer.addfile(entry)

        for source, dest in [*folders, *files]:
            parents(dest)
            layer.add(Path(source).resolve(), dest, filter=_as_root)
        for place, target in links:
            parents(place)
            entry = tarfile.TarInfo(place)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            layer.addfile(entry)
    return out.getvalue()


def write_image(path: Path, name: str, layer: bytes, settings: dict[str, Any]) -> None:
    """The image `name` with this layer; settings as in an image's config (Entrypoint, Cmd, User)."""
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], **settings},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created_by": Path(__file__).name}],
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}.tar"]}]
    part = path.with_suffix(".part")
    with tarfile.open(part, "w", format=tarfile.GNU_FORMAT) as out:
        contents = {config_name: config, f"{digest}.tar": layer, "manifest.json": json.dumps(manifest).encode()}
        for entry_name, content in contents.items():
            entry = tarfile.TarInfo(entry_name)
            entry.size, entry.mode = len(content), 0o644
            out.addfile(entry, io.BytesIO(content))
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("name", help="NAME:TAG")
    parser.add_argument("--file", type=_pair, action="append", default=[], metavar="SRC=DEST")
    parser.add_argument("--dir", type=_pair, action="append", default=[], metavar="SRC=DEST")
    parser.add_argument("--link", type=_pair, action="append", default=[], metavar="PLACE=TARGET")
    parser.add_argument("--user", default="")
    parser.add_argument("--entrypoint", type=json.loads, metavar="JSON")
    parser.add_argument("--cmd", type=json.loads, metavar="JSON")
    given = parser.parse_args()
    settings = {"User": given.user, "Entrypoint": given.entrypoint, "Cmd": given.cmd}
    write_image(
        given.out,
        given.name,
        layer_of(given.file, given.dir, given.link),
        {key: value for key, value in settings.items() if value},
    )


if __name__ == "__main__":
    main()
