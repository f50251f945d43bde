"""Read the service's settings from the environment. Errors never repeat a secret."""

from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from shardtune.api_schemas.known_fields import rephrase_error
from shardtune.service.cli.errors import InputError
from shardtune.service.settings import SECRET_FIELDS, Settings


def read_settings(**overrides: Any) -> Settings:
    """Read the settings from environment variables; values in `overrides` take precedence.

    Raises:
        InputError: names each variable that cannot be used.
    """
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise InputError(*map(_error_line, error.errors(include_url=False))) from None
    except SettingsError as error:
        raise InputError(f"{error}: it takes JSON; correct the environment variable") from None


def _error_line(entry: Any) -> str:
    variable = f"SHARDTUNE_{'.'.join(map(str, entry['loc'])).upper()}"
    # A URL that does not parse still holds its password: validation errors carry the input as it was.
    shown = "not shown" if entry["loc"][0] in SECRET_FIELDS else repr(entry["input"])
    return f"{variable} ({shown}): {rephrase_error(entry['msg'])}; correct the environment variable"
