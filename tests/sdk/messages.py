"""Anthropic's SDK and Messages."""

import asyncio

import anthropic
from anthropic.types import Message, RawMessageStreamEvent

from common import *

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
create = client.messages.create
EVENTS = events_by_type(RawMessageStreamEvent)


def ask(text, thinking=False, tools=(), **more):
    if tools:
        more["tools"] = [dict(zip(("name", "description", "input_schema"), tool)) for tool in tools]
    more.setdefault("messages", [{"role": "user", "content": text}])
    kind = {"type": "enabled", "budget_tokens": 1024} if thinking else {"type": "disabled"}
    return {"model": MODEL, "max_tokens": 400, "thinking": kind, **more}


def whole(request):
    answer, record = recorded(lambda: create(**request))
    assert type(answer) is Message
    [raw] = data(record)
    kept(answer, raw)
    return answer


def events(request):
    """The events of a stream, each checked against what was sent."""
    found, record = recorded(lambda: list(create(**request, stream=True)))
    # The SDK keeps pings to itself; there is one.
    sent = [raw for raw in data(record) if raw["type"] != "ping"]
    same(len(sent) + 1, len(data(record)), "events")
    same([event.type for event in found], [raw["type"] for raw in sent])
    for event, raw in zip(found, sent):
        assert type(event) is EVENTS[raw["type"]], event
        kept(event, raw)
    return found


def helped(request):
    """The message that the SDK's own stream() puts together."""

    def run():
        with client.messages.stream(**request) as stream:
            return [event.type for event in stream], stream.get_final_message()

    (types, message), record = recorded(run)
    # Its events are those that came but for the ping, and one more for each delta.
    sent = [raw["type"] for raw in data(record) if raw["type"] != "ping"]
    same(len(types), len(sent) + sent.count("content_block_delta"), "events")
    same([kind for kind in types if kind in EVENTS], sent)
    return message


def blocks(message):
    """What a client goes on with, ids and signatures left out."""
    found = []
    for block in message.content:
        if block.type == "tool_use":
            assert block.id.startswith("call_"), block
            found.append((block.type, block.name, block.input))
        elif block.type == "thinking":
            assert block.signature, block
            found.append((block.type, block.thinking))
        else:
            found.append((block.type, block.text))
    return found


@check
def a_story_is_the_same_streamed_and_whole():
    request = ask(STORY, system="You are a helpful assistant.")
    message = whole(request)
    [(kind, text)] = blocks(message)
    assert kind == "text" and text.startswith("Once upon a time"), message
    same((message.stop_reason, message.stop_sequence), ("end_turn", None))
    found = events(request)
    same("".join(event.delta.text for event in found if event.type == "content_block_delta"), text)
    same(blocks(helped(request)), blocks(message))
    with client.messages.stream(**request) as stream:
        same("".join(stream.text_stream), text)


@check
def reasoning_is_a_thinking_block():
    message = whole(ask(SUM, thinking=True))
    [(_, reasoning), (_, text)] = blocks(message)
    assert reasoning.endswith("So 68."), reasoning
    same(text, "23 + 45 = 68")
    found = events(ask(SUM, thinking=True))
    deltas = [event.delta for event in found if event.type == "content_block_delta"]
    same("".join(delta.thinking for delta in deltas if delta.type == "thinking_delta"), reasoning)
    same(len([delta for delta in deltas if delta.type == "signature_delta"]), 1)
    same(blocks(helped(ask(SUM, thinking=True))), blocks(message))


@check
def a_tool_is_used_and_its_result_is_told():
    tools = [GET_WEATHER, ADD]
    expected = [("tool_use", "get_weather", {"city": "Paris", "unit": "celsius"})]
    message = whole(ask(WEATHER, tools=tools))
    same((message.stop_reason, blocks(message)), ("tool_use", expected))
    final = helped(ask(WEATHER, tools=tools))
    same((final.stop_reason, blocks(final)), ("tool_use", expected))
    # The content goes back as the SDK has it.
    for turn in (message, final):
        result = {"type": "tool_result", "tool_use_id": turn.content[0].id, "content": SKY}
        messages = [
            {"role": "user", "content": WEATHER},
            {"role": "assistant", "content": turn.content},
            {"role": "user", "content": [result]},
        ]
        same(blocks(whole(ask(None, tools=tools, messages=messages))), [("text", SKY_ANSWER)])
    found = events(ask(None, tools=tools, messages=messages))
    same(found[-2].delta.stop_reason, "end_turn")


@check
def two_tools_are_used_at_once():
    request = ask(TWO, thinking=True, tools=[SET_TIMER, ADD])
    expected = [("tool_use", "set_timer", {"minutes": 12, "label": "tea"}), ("tool_use", "add", {"a": 312.5, "b": 45})]
    found = events(request)
    starts = [event.content_block.type for event in found if event.type == "content_block_start"]
    same(starts, ["thinking", "tool_use", "tool_use"])
    final = helped(request)
    same(blocks(final)[1:], expected)
    assert isinstance(final.content[1].input["minutes"], int)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": result}
        for block, result in zip(final.content[1:], ("timer started", "357.5"))
    ]
    messages = [
        {"role": "user", "content": TWO},
        {"role": "assistant", "content": final.content},
        {"role": "user", "content": results},
    ]
    answer = whole(ask(None, thinking=True, tools=[SET_TIMER, ADD], messages=messages))
    same(blocks(answer)[-1], ("text", TWO_ANSWER))


@check
def a_stop_sequence_ends_the_answer():
    message = whole(ask(STORY, stop_sequences=["with a glass", "never said"]))
    assert message.content[0].text.endswith("she sat alone "), message
    same((message.stop_reason, message.stop_sequence), ("stop_sequence", "with a glass"))
    final = helped(ask(STORY, stop_sequences=["with a glass"]))
    same((blocks(final), final.stop_reason, final.stop_sequence), (blocks(message), "stop_sequence", "with a glass"))


@check
def max_tokens_cuts_the_answer():
    for message in (whole(ask(STORY, max_tokens=5)), helped(ask(STORY, max_tokens=5))):
        same((message.stop_reason, blocks(message)), ("max_tokens", [("text", "Once upon a time,")]))
    found = events(ask(STORY, max_tokens=5))
    same(found[-2].delta.stop_reason, "max_tokens")


@check
def max_tokens_may_cut_a_tool_use_anywhere():
    def request(limit):
        return ask("Set a timer of 12 minutes for tea.", tools=[SET_TIMER], max_tokens=limit)

    whole_use = {"minutes": 12, "label": "tea"}
    complete = helped(request(400)).usage.output_tokens
    same(blocks(helped(request(complete)))[0][2], whole_use)
    # stream() reads arguments while they come, so each beginning of them must be one of JSON.
    for limit in range(complete - 33, complete - 8, 2):
        message = helped(request(limit))
        same(message.stop_reason, "max_tokens")
        for kind, *use in blocks(message):
            if kind == "tool_use":
                same(use[0], "set_timer")
                for key, value in use[1].items():
                    assert str(whole_use[key]).startswith(str(value)), use


@check
def usage_is_counted():
    usage = whole(ask(SUM, thinking=True)).usage
    assert usage.input_tokens > 0 and usage.output_tokens > 0
    same((usage.cache_creation_input_tokens, usage.service_tier), (0, "standard"))
    found = events(ask(SUM, thinking=True))
    same((found[0].message.usage.output_tokens, found[-2].usage.output_tokens), (0, usage.output_tokens))
    final = helped(ask(SUM, thinking=True)).usage
    same(final.output_tokens, usage.output_tokens)
    same(final.input_tokens + final.cache_read_input_tokens, usage.input_tokens + usage.cache_read_input_tokens)


@check
def a_bad_request_is_a_BadRequestError():
    for stream in (False, True):
        error = raises(anthropic.BadRequestError, lambda: create(**ask("Hi", extra_body={"temperature": 7}, stream=stream)))
        same((error.status_code, error.type), (400, "invalid_request_error"))
        assert "temperature" in error.body["error"]["message"], error.body
        same(error.body["error"]["param"], "temperature")
        error = raises(anthropic.BadRequestError, lambda: create(**{**ask("Hi"), "model": "claude-1", "stream": stream}))
        assert "The supported API model names are" in error.body["error"]["message"], error.body
        error = raises(anthropic.BadRequestError, lambda: create(**ask("Hi", max_tokens=100_000, stream=stream, timeout=60)))
        assert "maximum context length" in str(error), error


@check
def closing_a_stream_cancels_the_request():
    def leave():
        with client.messages.stream(**ask(STORY), extra_headers={"x-test-hold": "5"}) as stream:
            for event in stream:
                if event.type == "text":
                    break

    _, record = recorded(leave)
    same((record["gone"], record["finish"], record["status"]), (True, CANCELLED, ERR_CANCELLED))
    assert record["completion_tokens"] < 60, record


@check
def a_stream_that_breaks_off_is_an_error():
    seen = []

    def read():
        headers = {"x-test-hold": "5", "x-test-deadline": "3000"}
        for event in create(**ask(STORY, stream=True, extra_headers=headers)):
            seen.append(event)

    def fail():
        try:
            read()
        except anthropic.APIStatusError as error:
            return error
        raise AssertionError("it did not break off")

    error, record = recorded(fail)
    same((error.type, error.body["error"]["type"]), ("api_error", "api_error"))
    assert "deadline" in error.body["error"]["message"], error.body
    same((record["finish"], record["status"]), (CANCELLED, ERR_DEADLINE))
    assert any(event.type == "content_block_delta" for event in seen), seen


@check
def what_the_server_does_not_know_is_no_fault():
    request = ask("Hello", metadata={"user_id": "somebody"}, extra_body={"no_such_field": 1})
    message = create(**request, extra_headers={"x-unknown": "1"}, extra_query={"a": "b"})
    same(blocks(message), [("text", "Hello! How can I help you?")])
    message = client.beta.messages.create(**ask("Hello"), betas=["no-such-beta-2026-01-01"])
    same(message.content[0].text, "Hello! How can I help you?")


@check
def the_asynchronous_client_reads_the_same():
    async def run():
        async with anthropic.AsyncAnthropic(base_url=URL, api_key="none", max_retries=0) as other:
            async with other.messages.stream(**ask(SUM, thinking=True)) as stream:
                return await stream.get_final_message()

    same(blocks(asyncio.run(run()))[-1], ("text", "23 + 45 = 68"))


main()
