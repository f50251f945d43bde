"""The service's settings from the environment. What is said of a wrong one never repeats a secret."""

from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from shardtune.service.cli.errors import InputError
from shardtune.service.settings import SECRET_FIELDS, Settings


def read_settings(**given: Any) -> Settings:
    """The settings of the environment, but for those given.

    Raises:
        InputError: names each variable that cannot be used.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        raise InputError(*map(_line, error.errors(include_url=False))) from None
    except SettingsError as error:
        raise InputError(f"{error}: it takes JSON; correct the environment variable") from None


def _line(entry: Any) -> str:
    variable = f"SHARDTUNE_{'.'.join(map(str, entry['loc'])).upper()}"
    shown = "not shown" if entry["loc"][0] in SECRET_FIELDS else repr(entry["input"])
    return f"{variable} ({shown}): {entry['msg'].removeprefix('Value error, ')}; correct the environment variable"
