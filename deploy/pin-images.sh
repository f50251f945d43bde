#!/bin/bash
# Name the images of others by digest: deploy/pin-images.sh [FOLDER]. What has a digest gets that of today. Needs skopeo, and reaches the registries.
# A pinned image stays as it is until you run this again: do so for security updates.
set -euo pipefail
cd "${1:-$(dirname "$0")}"
files=(compose/compose.yaml containers/*.Containerfile helm/shardtune/values.yaml)
name='docker\.io/[a-z0-9._/-]+:[A-Za-z0-9._-]+'
grep -ohE "$name" "${files[@]}" | sort -u | while read -r image; do
    digest=$(skopeo inspect --no-tags --format '{{.Digest}}' "docker://$image")
    if [[ ! $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
        echo "the registry's digest of $image is no SHA-256: $digest" >&2
        exit 1
    fi
    # The tag stays, for readers and for tools that look for newer versions; the digest counts.
    sed -i -E "s|${image//./\\.}(@sha256:[0-9a-f]{64})?([[:space:]\"]\|$)|$image@$digest\2|" "${files[@]}"
    echo "$image@$digest"
done
