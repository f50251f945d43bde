#!/bin/bash
# Make the files of a release from the last commit: deploy/release.sh [FOLDER] (default dist). One commit gives the same bytes each time.
# Wheel, sources, what each image installs (locks with hashes, and as bills of materials in CycloneDX's JSON), and the checksum of each file.
set -euo pipefail
fail() {
    echo "$1" >&2
    exit 1
}
# What people set for these tools would change the bytes.
unset CDPATH GZIP TAR_OPTIONS PYTHONPATH DIST_EXTRA_CONFIG
export LC_ALL=C
if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then fail "arguments ($*) must be one folder at most: deploy/release.sh [FOLDER]"; fi
for tool in git gzip realpath sha256sum tar; do
    command -v "$tool" > /dev/null || fail "$tool is not installed; install it with the system's packages"
done
[[ $(tar --version 2>&1) == *"GNU tar"* ]] || fail "tar is not GNU tar, whose order of files a release needs; put GNU tar first in PATH"
folder=$(realpath -m -- "${1:-$(dirname "$0")/../dist}")
cd "$(dirname "$0")/.."
python=$(realpath -s -- "${PYTHON:-.venv/bin/python}")
# A folder of sources inside of another checkout would give that one's commit.
[ "$(git rev-parse --show-toplevel 2> /dev/null)" -ef . ] \
    || fail "$PWD is no checkout that git reads, and a release is made from a commit; clone the repository (\`git -C $PWD status\` says more)"
commit=$(git rev-parse --quiet --verify 'HEAD^{commit}') || fail "$PWD has no commit, and a release is made from one; commit its files"
if [ -n "$(git status --porcelain --untracked-files=normal)" ]; then
    fail "the checkout has changes that are in no commit, and a release would lack them; commit or remove them"
fi
if [ -e "$folder" ] && [ ! -d "$folder" ]; then fail "$folder is no folder; name another one"; fi
if [ -e "$folder" ] && [ -n "$(ls -A "$folder")" ]; then
    fail "$folder is not empty, and would mix two releases; remove it, or name another folder"
fi
# Without isolation, the packages that build are those of this environment: others give other bytes.
problem=$("$python" -I - 2>&1 << 'PYTHON'
from importlib import metadata
from pathlib import Path

pins = dict(line.split("==") for line in Path("constraints.txt").read_text().split() if "==" in line)
for name in ("build", "cyclonedx-bom", "cyclonedx-python-lib", "setuptools"):
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        raise SystemExit(f"lacks {name} {pins[name]}") from None
    if version != pins[name]:
        raise SystemExit(f"has {name} {version}, not the {pins[name]} of constraints.txt")
PYTHON
) || fail "PYTHON ($python): ${problem##*$'\n'}; run \`make release\`, which installs what a release needs"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
umask 022
mkdir "$scratch/source" "$scratch/built" "$scratch/home"
# Nothing of the checkout but its commit, and no mode or line end that somebody's settings give it. Root would keep modes.
settings=(-c tar.umask=0022 -c core.autocrlf=false -c core.eol=lf -c core.attributesFile=/dev/null)
git "${settings[@]}" archive --format=tar "$commit" | tar -x --no-same-owner --no-same-permissions -C "$scratch/source"
cd "$scratch/source"
# setuptools reads a user's settings from the home folder.
HOME="$scratch/home" "$python" -I -m build --no-isolation --outdir "$scratch/built" . > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
# An archive of sources has the time at which it was made, and who made it. The standard asks for the format of POSIX.
sources=("$scratch"/built/*.tar.gz)
tar -x --no-same-owner --no-same-permissions -C "$scratch" -f "${sources[0]}"
name=$(basename "${sources[0]}" .tar.gz)
tar --sort=name --format=posix --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner -C "$scratch" -c "$name" | gzip -n > "${sources[0]}"
# CycloneDX's tool reads no version that setuptools would find in the source.
sed "s/^dynamic = \[\"version\"\]\$/version = \"${name#shardtune-}\"/" pyproject.toml > "$scratch/pyproject.toml"
for lock in locks/*.txt; do
    image=$(basename "$lock" .txt)
    cp "$lock" "$scratch/built/lock-$image.txt"
    "$python" -I -W ignore -m cyclonedx_py requirements --output-reproducible --of JSON --sv 1.6 --pyproject "$scratch/pyproject.toml" \
        --output-file "$scratch/built/sbom-$image.cdx.json" "$lock"
done
(cd "$scratch/built" && sha256sum -- *) > "$scratch/SHA256SUMS"
mkdir -p "$folder"
cp "$scratch"/built/* "$folder"
# Last: a folder without it is that of a run that was interrupted.
cp "$scratch/SHA256SUMS" "$folder"
cat "$folder/SHA256SUMS"
