"""Name of a cluster in a request: it is parsed once, whoever asks for it."""

from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.prediction import catalogue, prediction_request
from shardtune.tuner.search import fastest


def test_a_named_cluster_is_parsed_once_in_a_command() -> None:
    catalogue.parse_cluster.cache_clear()
    request = PredictionRequest(model="gpt2", cluster="2xh100", top=1)
    prediction_request.precision_of(request)
    table = fastest.answer_request(request)
    assert catalogue.parse_cluster.cache_info().misses == 1
    assert table.cluster == prediction_request.cluster_of(request)
