"""OpenAI's SDK and Responses."""

import asyncio
import json

import openai
from openai.types.responses import Response, ResponseStreamEvent

from common import *

client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
create = client.responses.create
EVENTS = events_by_type(ResponseStreamEvent)

# Where fathom follows the service that it stands in for and not the SDK's types: usage has no such field there, and a
# failure of the server has the code "internal_error". The SDK reads both all the same.
KNOWN = ["usage.input_tokens_details.cache_write_tokens missing"]
KNOWN += ["response." + place for place in KNOWN] + ["response.error.code literal_error"]


def ask(text, thinking=False, tools=(), **more):
    if tools:
        more["tools"] = [{"type": "function", **dict(zip(("name", "description", "parameters"), tool))} for tool in tools]
    return {"model": MODEL, "input": text, "reasoning": {"effort": "high" if thinking else "none"}, **more}


def whole(request):
    answer, record = recorded(lambda: create(**request))
    assert type(answer) is Response
    [raw] = data(record)
    kept(answer, raw, KNOWN)
    return answer


def events(request):
    """The events of a stream, each checked against what was sent."""
    found, record = recorded(lambda: list(create(**request, stream=True)))
    sent = data(record)
    same([event.type for event in found], [raw["type"] for raw in sent])
    for event, raw in zip(found, sent):
        assert type(event) is EVENTS[raw["type"]], event
        kept(event, raw, KNOWN)
    same([event.sequence_number for event in found], list(range(len(found))))
    return found


def helped(request):
    """The response that the SDK's own stream() puts together, and the types of its events."""

    def run():
        with client.responses.stream(**request) as stream:
            types = [event.type for event in stream]
            return types, stream.get_final_response()

    (types, response), record = recorded(run)
    same(types, [raw["type"] for raw in data(record)])
    return response


def kinds(response):
    return [item.type for item in response.output]


def calls(response):
    return [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]


@check
def a_story_is_the_same_streamed_and_whole():
    answer = whole(ask(STORY, instructions="You are a helpful assistant."))
    assert answer.output_text.startswith("Once upon a time"), answer
    same((answer.status, kinds(answer), answer.instructions), ("completed", ["message"], "You are a helpful assistant."))
    found = events(ask(STORY, instructions="You are a helpful assistant."))
    same(found[-1].type, "response.completed")
    same(found[-1].response.output_text, answer.output_text)
    deltas = "".join(event.delta for event in found if event.type == "response.output_text.delta")
    same(deltas, answer.output_text)
    same(helped(ask(STORY, instructions="You are a helpful assistant.")).output_text, answer.output_text)


@check
def reasoning_is_an_item_of_its_own():
    answer = whole(ask(SUM, thinking=True))
    same(kinds(answer), ["reasoning", "message"])
    reasoning = answer.output[0].content[0].text
    assert reasoning.endswith("So 68."), reasoning
    same(answer.output_text, "23 + 45 = 68")
    found = events(ask(SUM, thinking=True))
    deltas = "".join(event.delta for event in found if event.type == "response.reasoning_text.delta")
    same(deltas, reasoning)
    final = helped(ask(SUM, thinking=True))
    same((final.output[0].content[0].text, final.output_text), (reasoning, answer.output_text))


@check
def a_function_is_called_and_its_result_is_told():
    tools = [GET_WEATHER, ADD]
    expected = [("get_weather", {"city": "Paris", "unit": "celsius"})]
    answer = whole(ask(WEATHER, tools=tools))
    same((answer.status, calls(answer)), ("completed", expected))
    final = helped(ask(WEATHER, tools=tools))
    same(calls(final), expected)
    # The output goes back as the SDK has it.
    for response in (answer, final):
        result = {"type": "function_call_output", "call_id": response.output[0].call_id, "output": SKY}
        turns = [{"role": "user", "content": WEATHER}, *response.output, result]
        same(whole(ask(turns, tools=tools)).output_text, SKY_ANSWER)
    found = events(ask(turns, tools=tools))
    same(found[-1].response.output_text, SKY_ANSWER)


@check
def two_functions_are_called_at_once():
    request = ask(TWO, thinking=True, tools=[SET_TIMER, ADD])
    expected = [("set_timer", {"minutes": 12, "label": "tea"}), ("add", {"a": 312.5, "b": 45})]
    found = events(request)
    done = [event for event in found if event.type == "response.function_call_arguments.done"]
    same([json.loads(event.arguments) for event in done], [arguments for _, arguments in expected])
    final = helped(request)
    same((kinds(final), calls(final)), (["reasoning", "function_call", "function_call"], expected))
    turns = [{"role": "user", "content": TWO}, *final.output]
    made = [item for item in final.output if item.type == "function_call"]
    for item, result in zip(made, ("timer started", "357.5")):
        turns.append({"type": "function_call_output", "call_id": item.call_id, "output": result})
    same(whole(ask(turns, thinking=True, tools=[SET_TIMER, ADD])).output_text, TWO_ANSWER)


@check
def max_output_tokens_cuts_the_answer():
    answer = whole(ask(STORY, max_output_tokens=5))
    same((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))
    same((answer.output_text, answer.output[0].status), ("Once upon a time,", "incomplete"))
    found = events(ask(STORY, max_output_tokens=5))
    same((found[-1].type, found[-1].response.output_text), ("response.incomplete", "Once upon a time,"))
    # In the middle of a call the arguments are the beginning of what they would have been.
    found = events(ask("Set a timer of 12 minutes for tea.", tools=[SET_TIMER], max_output_tokens=26))
    [call] = [item for item in found[-1].response.output if item.type == "function_call"]
    same((call.name, call.status), ("set_timer", "incomplete"))
    assert '{"minutes": 12, "label": "tea"}'.startswith(call.arguments) and call.arguments, call


@check
def tokens_have_their_log_probabilities():
    request = ask("Hello", top_logprobs=2, include=["message.output_text.logprobs"])
    part = whole(request).output[0].content[0]
    same("".join(entry.token for entry in part.logprobs), part.text)
    found = events(request)
    streamed = [entry for e in found if e.type == "response.output_text.delta" for entry in e.logprobs]
    same([entry.token for entry in streamed], [entry.token for entry in part.logprobs])
    assert all(len(entry.top_logprobs) == 2 for entry in streamed)


@check
def usage_is_counted():
    usage = whole(ask(SUM, thinking=True)).usage
    same(usage.total_tokens, usage.input_tokens + usage.output_tokens)
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens
    assert 0 <= usage.input_tokens_details.cached_tokens <= usage.input_tokens
    same(events(ask(SUM, thinking=True))[-1].response.usage.output_tokens, usage.output_tokens)


@check
def a_bad_request_is_a_BadRequestError():
    for stream in (False, True):
        error = raises(openai.BadRequestError, lambda: create(**ask("Hi", temperature=7, stream=stream)))
        same((error.status_code, error.type, error.param), (400, "invalid_request_error", "temperature"))
        error = raises(openai.BadRequestError, lambda: create(**{**ask("Hi"), "model": "gpt-1", "stream": stream}))
        same(error.param, "model")
        assert "The supported API model names are" in error.body["message"], error.body
        error = raises(openai.BadRequestError, lambda: create(**ask("Hi", max_output_tokens=100_000, stream=stream)))
        same(error.param, "input")
        assert "maximum context length" in str(error), error


@check
def closing_a_stream_cancels_the_request():
    def leave():
        stream = create(**ask(STORY, stream=True, extra_headers={"x-test-hold": "6"}))
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        stream.close()

    _, record = recorded(leave)
    same((record["gone"], record["finish"], record["status"]), (True, CANCELLED, ERR_CANCELLED))
    assert record["completion_tokens"] < 60, record


@check
def a_stream_that_breaks_off_has_failed():
    headers = {"x-test-hold": "6", "x-test-deadline": "3000"}
    found = events(ask(STORY, extra_headers=headers))
    response = found[-1].response
    same((found[-1].type, response.status), ("response.failed", "failed"))
    assert "deadline" in response.error.message, response.error
    assert response.output_text.startswith("Once"), response
    # stream() hands it out like any other event, and has no final response then.
    with client.responses.stream(**ask(STORY, extra_headers=headers)) as stream:
        same([event.type for event in stream][-1], "response.failed")
        raises(RuntimeError, stream.get_final_response)


@check
def what_the_server_does_not_know_is_no_fault():
    request = ask("Hello", metadata={"a": "b"}, store=False, user="somebody", extra_body={"no_such_field": 1})
    answer = create(**request, extra_headers={"x-unknown": "1"}, extra_query={"api-version": "1"})
    same(answer.output_text, "Hello! How can I help you?")


@check
def the_asynchronous_client_reads_the_same():
    async def run():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0) as other:
            async with other.responses.stream(**ask(SUM, thinking=True)) as stream:
                return await stream.get_final_response()

    same(asyncio.run(run()).output_text, "23 + 45 = 68")


main()
