#!/bin/bash
# Make the files of a release from the last commit: deploy/release.sh [FOLDER] (default dist). One commit gives the same bytes each time.
# Wheel, sources, what each image installs (locks with hashes, and as bills of materials in CycloneDX's JSON), and the checksum of each file.
set -euo pipefail
folder=$(realpath -m "${1:-$(dirname "$0")/../dist}")
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
if [ -n "$(git status --porcelain)" ]; then
    echo "the checkout has changes that are in no commit, and a release would lack them; commit or remove them" >&2
    exit 1
fi
if [ -e "$folder" ] && [ -n "$(ls -A "$folder")" ]; then
    echo "$folder is not empty, and would mix two releases; remove it, or name another folder" >&2
    exit 1
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
umask 022
mkdir "$scratch/source" "$scratch/built"
git archive HEAD | tar -x -C "$scratch/source"
# Without isolation, the packages that build are those of constraints.txt.
(cd "$scratch/source" && "$python" -m build --no-isolation --outdir "$scratch/built" . > "$scratch/log" 2>&1) || { cat "$scratch/log" >&2; exit 1; }
# An archive of sources has the time at which it was made, and who made it.
sources=("$scratch"/built/*.tar.gz)
tar -x -C "$scratch" -f "${sources[0]}"
name=$(basename "${sources[0]}" .tar.gz)
tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$scratch" -c "$name" | gzip -n > "${sources[0]}"
for lock in locks/*.txt; do
    image=$(basename "$lock" .txt)
    cp "$lock" "$scratch/built/lock-$image.txt"
    "$python" -W ignore -m cyclonedx_py requirements --output-reproducible --of JSON --sv 1.6 --pyproject pyproject.toml \
        --output-file "$scratch/built/sbom-$image.cdx.json" "$lock"
done
(cd "$scratch/built" && sha256sum -- * > SHA256SUMS)
mkdir -p "$folder"
cp "$scratch"/built/* "$folder"
cat "$folder/SHA256SUMS"
