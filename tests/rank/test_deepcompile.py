"""DeepCompile without a CUDA toolkit."""

import pytest

from shardtune.workers.rank.classify import SetupError
from shardtune.workers.rank.strategies.zero import require_cuda_toolkit


def test_deepcompile_without_a_toolkit_is_a_setup_failure_with_its_remedy() -> None:
    """DeepSpeed 0.19.8 joins a path of None."""
    with pytest.raises(SetupError, match=r"deepcompile \(true\).*CUDA_HOME"):
        require_cuda_toolkit(None)
    require_cuda_toolkit("/usr/local/cuda")
