"""Read the measured rates of a cluster that a prediction uses."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from shardtune.api_schemas.known_fields import rephrase_error
from shardtune.api_schemas.machines.hardware import Cluster, HardwareReport
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule

if TYPE_CHECKING:
    from shardtune.service.cli import study_file
else:
    study_file = LazyModule("shardtune.service.cli.study_file")


def hardware_report(cluster: Cluster | str, file: Path | None, state_dir: Path) -> HardwareReport | None:
    """Read the measured rates of a machine from a file or, for the cluster `local`, the newest ones in the state
    directory. None for a cluster that is given by its name.

    Raises:
        InputError: this machine was not measured, the file is no report, or both a cluster and a file are given.
    """
    if cluster != "local":
        if file is not None:
            raise InputError(f"--hardware ({file}) already holds the cluster; leave out --cluster ({cluster})")
        return None
    if file is None:
        files = sorted((state_dir / "worker").glob("hardware-*.json"), key=lambda path: path.stat().st_mtime)
        if not files:
            raise InputError(
                "--cluster ('local'): this machine has not been measured; run `shardtune measure-hardware` (a minute), "
                "or name a cluster such as 8xh100"
            )
        # The newest: there is one report per fingerprint and number of ranks.
        file = files[-1]
    try:
        return HardwareReport.model_validate(study_file.read_json_object(file))
    except ValidationError as error:
        wrong = (
            f"--hardware ({file}): {'.'.join(map(str, e['loc']))}: {rephrase_error(e['msg'])}; run `shardtune measure-hardware` again"
            for e in error.errors()
        )
        raise InputError(*wrong) from None
