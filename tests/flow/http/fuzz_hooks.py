"""Loaded by schemathesis in tests/flow/http/test_fuzz.py: the fuzzer must not saw off the branch it sits on.

A request that would revoke its own key, or set the quotas of the project its studies are in, goes to another one. With FUZZ_CANARY, an answer
that has this word fails.
"""

import os

import schemathesis

_INSTEAD = {
    "key_id": (os.environ.get("FUZZ_OWN_KEY"), os.environ.get("FUZZ_OTHER_KEY")),
    "project_id": ("default", "fuzzed"),
}


@schemathesis.hook
def before_call(context, case, kwargs):
    for name, (own, other) in _INSTEAD.items():
        if own is not None and case.path_parameters.get(name) == own:
            case.path_parameters[name] = other


@schemathesis.check
def nothing_of_the_other_project(ctx, response, case):
    """The fuzzer cannot know the word, so no answer has it from the request."""
    word = os.environ.get("FUZZ_CANARY")
    assert not word or word not in response.text, f"{word} is in the answer"
