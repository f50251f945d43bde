"""Names of the environment variables that a library reads, taken from its wheel or folder: the data of the exports' test.

python -m tests.tools.library_variables torch.whl > tests/data/environment_variables/torch.txt
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

_FAMILIES = (
    rb"(?:TORCH[A-Z]*|PYTORCH|TRITON|INDUCTOR|AOT[A-Z]*|REDIS|TUNABLEOP|ATEN|C10|CAFFE2|NCCL|GLOO|UCC|KINETO|LIBKINETO|CUDA|CUDNN|CUBLAS|CUBLASLT|NVBLAS|NVIDIA"
    rb"|OMP|GOMP|KMP|LIBOMP|LIBOMPTARGET|ONEDNN|DNNL|MKL|MKLDNN|VML|XNNPACK)"
)
_NAME = re.compile(_FAMILIES + rb"[A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]")
_TEXT = re.compile(rb"(?<![\x20-\x7e])(" + _NAME.pattern + rb")\0")
"""A whole text of a binary that has the form of a variable's name: more than the library reads, and never less."""
_PYTHON = re.compile(
    rb"[\"']("
    + _FAMILIES
    + rb"_[A-Z0-9_]*[A-Z0-9])[\"']|(?:environ(?:\.\w+)?|getenv)\s*[\[(]\s*[\"']([A-Z][A-Z0-9_]+)[\"']"
)
_CPP = re.compile(rb"(?:getenv|get_env|getCvar\w*|check_env|has_env)\w*\(\s*(?:\{\s*)?\"([A-Z][A-Z0-9_]+)\"")
_ONEDNN = re.compile(rb"(?:getenv_\w+user\(|\benv_\w*name(?:\[\])?\s*=)\s*\"([A-Z][A-Z0-9_]+)\"")
"""Names in oneDNN's sources, which it reads with either of two prefixes."""
_CPP_LISTS = re.compile(rb"\bTORCH_NCCL_[A-Z0-9_]+[A-Z0-9]\b")
"""Names of NCCL's watchdog in torch's headers, where a CPU build has no code of it."""


def names_in(file: str, content: bytes) -> set[str]:
    """Names in one file, by what kind of file it is."""
    if ".so" in Path(file).name:
        # A linker stores a text that ends another one (OMP_STACKSIZE, GOMP_STACKSIZE) only once.
        texts = [
            text[at:] for text in {*_TEXT.findall(content)} for at in range(len(text)) if _NAME.fullmatch(text, at)
        ]
    elif file.endswith((".py", ".pyi")):
        texts = [family or other for family, other in _PYTHON.findall(content)]
    elif file.endswith((".h", ".hpp", ".cc", ".cpp", ".cu", ".c")):
        texts = [*_CPP.findall(content), *_CPP_LISTS.findall(content)]
        texts += [prefix + name for name in _ONEDNN.findall(content) for prefix in (b"ONEDNN_", b"DNNL_")]
    else:
        return set()
    return {text.decode() for text in texts}


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        yield from ((str(file), file.read_bytes()) for file in sorted(path.rglob("*")) if file.is_file())
        return
    with ZipFile(path) as wheel:
        for name in wheel.namelist():
            yield name, wheel.read(name)


def main(paths: list[str]) -> None:
    """Print the names, one a line."""
    names = set().union(*(names_in(file, content) for path in paths for file, content in _contents(Path(path))))
    print("\n".join(sorted(names)))


if __name__ == "__main__":
    main(sys.argv[1:])
