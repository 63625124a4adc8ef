#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the project's images from its own Dockerfile into CACHE/images, without a registry or a docker engine; what has not
# changed is not built again.
#
# usage: images.sh CACHE TARGET...      leaves CACHE/images/slacktier-TARGET.tar, the image localhost/slacktier-TARGET:dev
#
# The public base images are stood in for by Debian's own Python of the same version, under the base images' names. Needs root.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
[ $# -ge 2 ] || { sed -n '3,9p' "$0" >&2; exit 2; }
mkdir -p "$1"/{images,stamps}
cache=$(cd "$1" && pwd)
shift
exec 8>"$cache/images/.lock"
flock 8

export BUILDAH_ISOLATION=chroot
store=(--storage-driver overlay --root "$cache/storage" --runroot "$cache/storage-run")
slim=docker.io/library/python:3.11-slim-bookworm full=docker.io/library/python:3.11-bookworm
slim_packages=ca-certificates,passwd,python3,python3-venv,wget,libstdc++6
full_packages=$slim_packages,python3-pip,python3-dev,gcc,libc6-dev,make,liburing-dev

say() { printf 'images: %4d s: %s\n' "$SECONDS" "$*" >&2; }
run_buildah() { buildah "${store[@]}" "$@"; }

# stand_in IMAGE PACKAGES: a Debian root with these packages under that name.
stand_in() {
    local sources="" folder container mounted stamp=$cache/stamps/base-${1##*:}
    if [ "$(cat "$stamp" 2>/dev/null)" = "$2" ] && run_buildah inspect --type image "$1" >/dev/null 2>&1; then return 0; fi
    say "$1 from Debian packages"
    folder=$(mktemp -d "$cache/root.XXXXXX")
    [ ! -s /etc/apt/sources.list.d/debian.sources ] || sources=/etc/apt/sources.list.d/debian.sources
    # shellcheck disable=SC2086 # no sources means the tool's own defaults
    mmdebstrap --quiet --mode=root --variant=essential --format=directory --include="$2" --skip=output/dev \
        --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$folder" $sources >"$cache/stand-in.log" 2>&1 \
        || { tail -20 "$cache/stand-in.log" >&2; exit 1; }
    container=$(run_buildah from scratch)
    mounted=$(run_buildah mount "$container")
    cp -a "$folder/." "$mounted/"
    run_buildah umount "$container" >/dev/null
    run_buildah commit --quiet "$container" "$1" >/dev/null
    run_buildah rm "$container" >/dev/null
    rm -rf --one-file-system "$folder"
    echo "$2" >"$stamp"
}

# Everything that the Dockerfile copies, as it is in the working tree.
context_key() {
    (cd "$root" && git ls-files -co --exclude-standard -- tests/cluster/kubernetes/images.sh pyproject.toml setup.py README.md LICENSE helm/images \
        contracts engine_patch tierd operator loadtest | sort | xargs sha256sum | sha256sum | cut -c1-12)
}

key=$(context_key)
# pip must trust what this machine trusts.
trust=(--volume /etc/ssl/certs:/etc/ssl/certs:ro)
[ ! -e /etc/pip.conf ] || trust+=(--volume /etc/pip.conf:/etc/pip.conf:ro)
for target in "$@"; do
    name=slacktier-$target
    [ "$(cat "$cache/stamps/$name" 2>/dev/null)" != "$key" ] || continue
    stand_in $full $full_packages
    stand_in $slim $slim_packages
    say "$name"
    run_buildah bud --quiet --layers --pull-never "${trust[@]}" --env PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
        --file "$root/helm/images/Dockerfile" --ignorefile "$root/helm/images/Dockerfile.dockerignore" --target "$target" --tag "localhost/$name:dev" "$root" >"$cache/$name.log" 2>&1 \
        || { tail -30 "$cache/$name.log" >&2; exit 1; }
    rm -f "$cache/images/$name.new"
    run_buildah push --quiet "localhost/$name:dev" "docker-archive:$cache/images/$name.new:localhost/$name:dev"
    mv "$cache/images/$name.new" "$cache/images/$name.tar" # whole or not at all
    echo "$key" >"$cache/stamps/$name"
done
