"""What the builder of an image gets to see of a checkout, and secrets that people leave in one.

The rules are moby's `patternmatcher`, which Docker, buildah and podman share: the last pattern that matches a path or a
folder above it decides, and `!` takes a path back in.
"""

import re
import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
IGNORE_FILES = (".containerignore", ".dockerignore")
CONTAINERFILES = sorted((REPOSITORY / "deploy/containers").glob("*.Containerfile"))
SECRET = "planted-4711"
PLANTED = [
    *(".env", "worker.key", "metrics.key", "me.key", "id_rsa", ".netrc", ".pypirc", "shardtune.sqlite3", "kubeconfig"),
    *("deploy/compose/.env", "deploy/compose/worker.key", "deploy/compose/metrics.key", "deploy/compose/compose.env"),
    *(".shardtune/shardtune.sqlite3", ".shardtune/secret.key", ".git/config", ".venv/bin/activate", "best/config.json"),
    *(
        "service/.env",
        "service/worker.key",
        "service/id_ed25519",
        "service/.secrets.py",
        "service/cli/shardtune.sqlite3",
    ),
    *(
        "workers/tls.pem",
        "workers/.shardtune/shardtune.sqlite3",
        "shardtune/worker.key",
        "shardtune/.env",
        "tuner/notes.txt",
    ),
    *("docs/how-to/deploy.key", "docs/reference/.env", "docs/notes.txt", "locks/pypi.token", "locks/notes.txt"),
    *("db/dump.sql", "db/backup.sqlite3-wal", "traces/rank-0.json.gz", "api_schemas/key.pem", "build/lib/token.py"),
]


def copy_with_secrets(folder: Path) -> Path:
    """Copy the checkout's tracked files, and plant secrets beside them."""
    listed = subprocess.run(["git", "-C", REPOSITORY, "ls-files", "-z"], check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).is_symlink() or (REPOSITORY / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name, follow_symlinks=False)
    for name in PLANTED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{SECRET}\n")
    return folder


def sent_to_builder(checkout: Path, ignore_file: str) -> set[str]:
    """Names of all files that the builder sees under an ignore file."""
    rules = _rules((checkout / ignore_file).read_text())
    names = (path.relative_to(checkout) for path in checkout.rglob("*") if path.is_symlink() or path.is_file())
    return {name.as_posix() for name in names if not _is_ignored(name, rules)}


def copied_names(containerfile: Path) -> list[str]:
    """Sources of each COPY and ADD from the checkout, in the order of the file."""
    lines = [line.split() for line in containerfile.read_text().splitlines() if re.match(r"(COPY|ADD)\b", line)]
    return [word for _, *words in lines if not words[0].startswith("--from=") for word in words[:-1]]


def _rules(text: str) -> list[tuple[bool, re.Pattern[str]]]:
    patterns = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(pattern.startswith("!"), _expression(pattern.removeprefix("!"))) for pattern in patterns]


def _expression(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(words.get(part) or re.escape(part) for part in parts))


def _is_ignored(path: Path, rules: list[tuple[bool, re.Pattern[str]]]) -> bool:
    names = [path.as_posix(), *(parent.as_posix() for parent in path.parents if parent.name)]
    is_ignored = False
    for takes_back, expression in rules:
        if any(expression.fullmatch(name) for name in names):
            is_ignored = not takes_back
    return is_ignored
