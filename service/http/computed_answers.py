"""Responses that are computed from the request alone, such as predictions: nothing is stored without an idempotency key."""

from collections.abc import Callable, Sequence

from pydantic import ValidationError

from shardtune.service.http import errors
from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.idempotent_requests import Answer, IdempotencyKey
from shardtune.service.process.context import Context


def computed(
    context: Context, once: IdempotencyKey, compute: Callable[[], Answer], quantities: Sequence[str]
) -> Answer:
    """Compute and return the response of a POST request; repetitions with the same Idempotency-Key get the first
    response.

    `quantities`: fields of the request whose values may be too large to compute with; the error then names them.

    Raises:
        Invalid: the request's values cannot be used.
    """
    try:
        answer = compute()
    # Extreme values pass the schema and overflow in the predictor.
    except (ValidationError, ArithmeticError):
        message = f"one of {', '.join(quantities)} is too large or too small to compute with; correct it"
        fields = [FieldError(field=name, message=message) for name in quantities]
        raise errors.Invalid("invalid_request", message, fields) from None
    except ValueError as error:
        raise errors.invalid_from_value_error("", error) from None
    # Without a key nothing is stored, so that the response needs no write transaction.
    if once.key is None:
        return answer
    with once.write(context) as session:
        return once.answer(session, answer)
