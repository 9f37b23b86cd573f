"""What the scripts share: named checks, the server's record, and the question whether an SDK kept all it was sent."""

import json
import sys
import traceback
import typing
import urllib.request

import pydantic

URL = sys.argv[1]
MODEL = "DeepSeek-V4.1-Flash"

STORY = "Tell me a story about a fox named Lily."
SUM = "What is 23 + 45?"
WEATHER = "What is the weather in Paris in celsius?"
TWO = "Set a timer of 12 minutes for tea and what is 312.5 plus 45?"

# Functions of the demo model's training: name, description, schema.
GET_WEATHER = (
    "get_weather",
    "Get the current weather of a city",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
    },
)
ADD = (
    "add",
    "Add two numbers",
    {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]},
)
SET_TIMER = (
    "set_timer",
    "Start a timer",
    {
        "type": "object",
        "properties": {"minutes": {"type": "integer"}, "label": {"type": "string"}},
        "required": ["minutes", "label"],
    },
)
SKY = '{"temperature": 7, "unit": "celsius", "sky": "cloudy"}'
SKY_ANSWER = "It is 7 degrees celsius and cloudy in Paris."
TWO_ANSWER = "The tea timer is set for 12 minutes. 312.5 plus 45 is 357.5."

# As the C header counts them.
STOPPED, CUT, CALLED, CANCELLED = 1, 2, 3, 4
ERR_DEADLINE, ERR_CANCELLED = 101, 102

_checks = []


def check(function):
    """Makes a scenario of a function; its name is the check's."""
    _checks.append(function)
    return function


def main():
    """Runs all checks, a line each, and ends with 1 if one failed."""
    failed = 0
    for function in _checks:
        name = function.__name__.replace("_", " ")
        try:
            function()
            print("ok", name)
        except Exception as error:
            failed += 1
            text = str(error).strip().splitlines() or [type(error).__name__]
            print(f"FAILED {name}: {type(error).__name__}: {text[0]}")
            traceback.print_exc()
    print(f"{len(_checks)} checks, {failed} failed")
    sys.exit(1 if failed else 0)


def same(found, expected, what=""):
    """Equal, or both sides in the message."""
    assert found == expected, f"{what} {found!r} is not {expected!r}"


def raises(kind, act):
    """The error of this very kind that an act ends with."""
    try:
        act()
    except Exception as error:
        # Not one that is made of it: SDKs have a class for each status.
        assert type(error) is kind, f"{type(error).__name__} and not {kind.__name__}: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def _get(path):
    with urllib.request.urlopen(URL + path, timeout=60) as response:
        return json.load(response)


def recorded(act):
    """What an act gives, and the server's record of the one request that it made."""
    number = _get("/test/ended")["count"]
    result = act()
    record = _get(f"/test/ended/{number}")
    assert record["request"] is not None, "the request never ended"
    same(record["count"], number + 1, "requests")
    return result, record["request"]


def data(record):
    """The documents that the server sent."""
    return [line["data"] for line in record["lines"]]


def kept(parsed, raw, known=()):
    """The SDK's object holds all of `raw` and nothing else, and `raw` is what its types demand, but for what is known."""
    same(parsed.to_dict(mode="json", warnings=False), raw)
    valid(type(parsed), raw, known)


def valid(kind, raw, known=()):
    """`raw` is what the SDK's type demands, but for differences that are known."""
    try:
        kind.model_validate(raw)
    except pydantic.ValidationError as error:
        places = [".".join(str(part) for part in e["loc"]) + " " + e["type"] for e in error.errors()]
        unknown = [place for place in places if place not in known]
        assert not unknown, f"{kind.__name__}: {unknown} in {raw}"


def events_by_type(union):
    """The classes of a union of events, by the type they are for."""
    while typing.get_origin(union) is typing.Annotated:
        union = typing.get_args(union)[0]
    classes = {}
    for kind in typing.get_args(union):
        for name in typing.get_args(kind.model_fields["type"].annotation):
            classes[name] = kind
    return classes
