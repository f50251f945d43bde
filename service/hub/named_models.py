"""Complete models that a request names by their repository: the configuration is read, and the commit stored."""

import os
from functools import partial
from typing import TypeVar

from anyio import from_thread

from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.hub_source import HubSource
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.trials.plans import PlanRequest
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.errors import ApiError, invalid, invalid_from_value_error
from shardtune.service.http.input_guard import check_value
from shardtune.service.hub import fetch, missing_models
from shardtune.service.hub_endpoint import endpoint_of
from shardtune.service.process.context import Context
from shardtune.service.process.public_tls import public_tls

Request = TypeVar("Request", StudyRequest, PredictionRequest, PlanRequest)

_WAIT_S = 1.0
"""Maximum seconds that a request waits until it may read the hub. Each waiting request occupies a thread of the
service.
"""
_TRUE = ("1", "ON", "YES", "TRUE")


def with_config(context: Context, model: ModelSpec) -> ModelSpec:
    """Return the model with its configuration (`config.json`). If the request gives only a repository id, the file is
    read from the model hub.

    Call this function outside of a transaction, from a thread of the server's event loop.

    Raises:
        Invalid: the operator does not allow reading the hub, or the model does not exist, may not be read or cannot
            be trained.
        ApiError: code `hub_unreachable`: the hub does not answer.
    """
    if not model.is_unread:
        return model
    assert model.hub is not None
    source = model.hub
    reason = _why_not(context)
    if reason is not None:
        message = (
            f"model ({source}) names a repository, and {reason}; give a preset, the content of its config.json, or run "
            "`shardtune predict` or `shardtune tune` with it, which read the hub themselves"
        )
        raise invalid("model", str(source), message)
    known = context.hub_cache.get(source)
    if known is None:
        known = _read(context, source)
        context.hub_cache.put(source, known)
    return known if model.name == source.id else known.model_copy(update={"name": model.name})


def with_config_of(context: Context, request: Request) -> Request:
    """Return a request in which the configuration of the model is filled in from the model hub, if the request gives
    only a repository id.
    """
    model = with_config(context, request.model)
    return request if model is request.model else request.model_copy(update={"model": model})


def _why_not(context: Context) -> str | None:
    """Reason why this service may not read models from the model hub; None if it may."""
    if not context.settings.hub:
        return "this service reads no hub (its operator may set SHARDTUNE_HUB=true)"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        return "this service is offline (HF_HUB_OFFLINE)"
    return None


def _read(context: Context, source: HubSource) -> ModelSpec:
    with context.hub_cache.read_slot(_WAIT_S) as is_free:
        if not is_free:
            raise _unreachable(source, "too many models are being read at the moment")
        try:
            model = from_thread.run(partial(fetch.read_model, source, _rules(context)))
        except fetch.HubUnavailable as error:
            raise _unreachable(source, str(error)) from None
        except ValueError as error:
            raise invalid_from_value_error("", error) from None
    # Files of the hub pass no guard of request bodies.
    check_value({"model": {"config": model.config}}, "model")
    return model


def _unreachable(source: HubSource, reason: str) -> ApiError:
    message = missing_models.unreachable(source, reason)
    return ApiError("hub_unreachable", message, [FieldError(field="model", value=str(source), message=message)])


def _rules(context: Context) -> fetch.HubRules:
    settings = context.settings
    return fetch.HubRules(
        endpoint=endpoint_of(settings.hub_endpoint),
        hosts=frozenset(settings.hub_hosts),
        allow_private=settings.hub_allow_private,
        look_ups=context.dns_resolver,
        tls=public_tls(),
    )
