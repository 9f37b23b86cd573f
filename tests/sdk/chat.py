"""OpenAI's SDK and Chat Completions."""

import asyncio
import json

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from common import *

client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
create = client.chat.completions.create


def ask(text, thinking=False, tools=(), **more):
    kind = "enabled" if thinking else "disabled"
    more.setdefault("messages", [{"role": "user", "content": text}])
    if tools:
        more["tools"] = [
            {"type": "function", "function": dict(zip(("name", "description", "parameters"), tool))} for tool in tools
        ]
    extra = {"thinking": {"type": kind}, **more.pop("extra_body", {})}
    return {"model": MODEL, "extra_body": extra, **more}


def whole(request):
    """An answer that is not streamed, checked against what was sent."""
    answer, record = recorded(lambda: create(**request))
    assert type(answer) is ChatCompletion
    [raw] = data(record)
    kept(answer, raw)
    return answer.choices[0]


def chunks(request):
    """The chunks of a stream, each checked against what was sent."""
    found, record = recorded(lambda: list(create(**request, stream=True)))
    sent = data(record)
    same(len(found), len(sent), "chunks")
    for chunk, raw in zip(found, sent):
        assert type(chunk) is ChatCompletionChunk
        kept(chunk, raw)
    return found


def helped(request):
    """The answer that the SDK's own stream() puts together from a stream."""

    def run():
        with client.chat.completions.stream(**request) as stream:
            for _ in stream:
                pass
            return stream.get_final_completion()

    answer, record = recorded(run)
    assert len(record["lines"]) > 2
    return answer


def joined(found, field):
    texts = [getattr(chunk.choices[0].delta, field, None) for chunk in found if chunk.choices]
    return "".join(text for text in texts if text)


def calls(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


@check
def a_story_is_the_same_streamed_and_whole():
    choice = whole(ask(STORY))
    assert choice.message.content.startswith("Once upon a time"), choice
    same(choice.finish_reason, "stop")
    same(choice.message.tool_calls, None)
    found = chunks(ask(STORY))
    same(joined(found, "content"), choice.message.content)
    same(found[0].choices[0].delta.role, "assistant")
    same([chunk.choices[0].finish_reason for chunk in found if chunk.choices[0].finish_reason], ["stop"])
    same(helped(ask(STORY)).choices[0].message.content, choice.message.content)


@check
def reasoning_is_in_reasoning_content():
    message = whole(ask(SUM, thinking=True)).message
    assert message.reasoning_content.endswith("So 68."), message
    same(message.content, "23 + 45 = 68")
    found = chunks(ask(SUM, thinking=True))
    same(joined(found, "reasoning_content"), message.reasoning_content)
    same(joined(found, "content"), message.content)
    final = helped(ask(SUM, thinking=True)).choices[0].message
    same((final.reasoning_content, final.content), (message.reasoning_content, message.content))
    assert not hasattr(whole(ask(SUM)).message, "reasoning_content")


@check
def a_tool_is_called_and_its_result_is_told():
    tools = [GET_WEATHER, ADD]
    choice = whole(ask(WEATHER, tools=tools))
    same(choice.finish_reason, "tool_calls")
    expected = [("get_weather", {"city": "Paris", "unit": "celsius"})]
    same(calls(choice.message), expected)
    final = helped(ask(WEATHER, tools=tools)).choices[0]
    same((calls(final.message), final.finish_reason), (expected, "tool_calls"))
    # The message goes back as the SDK has it.
    for message in (choice.message, final.message):
        messages = [
            {"role": "user", "content": WEATHER},
            message,
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": SKY},
        ]
        same(whole(ask(None, tools=tools, messages=messages)).message.content, SKY_ANSWER)
    found = chunks(ask(None, tools=tools, messages=messages))
    same(joined(found, "content"), SKY_ANSWER)


@check
def two_tools_are_called_at_once():
    request = ask(TWO, thinking=True, tools=[SET_TIMER, ADD])
    found = chunks(request)
    made = {}
    for chunk in found:
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.id:
                assert call.index not in made
                made[call.index] = [call.id, call.type, call.function.name, ""]
            made[call.index][3] += call.function.arguments
    expected = [("set_timer", {"minutes": 12, "label": "tea"}), ("add", {"a": 312.5, "b": 45})]
    same([(name, json.loads(text)) for _, _, name, text in made.values()], expected)
    same(list(made), [0, 1])
    message = helped(request).choices[0].message
    same(calls(message), expected)
    assert isinstance(calls(message)[0][1]["minutes"], int)
    messages = [{"role": "user", "content": TWO}, message]
    for call, result in zip(message.tool_calls, ("timer started", "357.5")):
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = whole(ask(None, thinking=True, tools=[SET_TIMER, ADD], messages=messages)).message
    same(answer.content, TWO_ANSWER)


@check
def a_stop_sequence_ends_the_answer():
    choice = whole(ask(STORY, stop=["with a glass", "never said"]))
    assert choice.message.content.endswith("she sat alone "), choice
    same(choice.finish_reason, "stop")
    found = chunks(ask(STORY, stop="with a glass"))
    same(joined(found, "content"), choice.message.content)


@check
def max_tokens_cuts_the_answer():
    choice = whole(ask(STORY, max_tokens=5))
    same((choice.finish_reason, choice.message.content), ("length", "Once upon a time,"))
    found = chunks(ask(STORY, max_tokens=5))
    same((found[-1].choices[0].finish_reason, joined(found, "content")), ("length", "Once upon a time,"))
    # stream() has an error of its own for that.
    raises(openai.LengthFinishReasonError, lambda: helped(ask(STORY, max_tokens=5)))


@check
def tokens_have_their_log_probabilities():
    choice = whole(ask("Hello", logprobs=True, top_logprobs=2))
    entries = choice.logprobs.content
    same("".join(entry.token for entry in entries), choice.message.content)
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)
    found = chunks(ask("Hello", logprobs=True, top_logprobs=2))
    streamed = [entry for chunk in found if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    same([entry.token for entry in streamed], [entry.token for entry in entries])
    same(len(helped(ask("Hello", logprobs=True, top_logprobs=2)).choices[0].logprobs.content), len(entries))


@check
def usage_is_counted():
    answer = create(**ask(SUM, thinking=True))
    usage = answer.usage
    same(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    same(usage.prompt_tokens_details.cached_tokens, usage.prompt_cache_hit_tokens)
    for options, with_usage in (({"include_usage": True}, 1), (openai.omit, 1)):
        found = chunks(ask(SUM, thinking=True, stream_options=options))
        told = [chunk.usage for chunk in found if chunk.usage]
        same((len(told), found[-1].usage), (with_usage, told[-1]))
        same(told[-1].completion_tokens, usage.completion_tokens)
    final = helped(ask(SUM, thinking=True, stream_options={"include_usage": True}))
    same(final.usage.completion_tokens, usage.completion_tokens)


@check
def a_bad_request_is_a_BadRequestError():
    for stream in (False, True):
        error = raises(openai.BadRequestError, lambda: create(**ask("Hi", temperature=7, stream=stream)))
        same((error.status_code, error.type, error.code), (400, "invalid_request_error", "invalid_request_error"))
        same(error.param, "temperature")
        assert "temperature" in str(error), error
        error = raises(openai.BadRequestError, lambda: create(**{**ask("Hi"), "model": "gpt-1", "stream": stream}))
        same(error.param, "model")
        assert "The supported API model names are" in error.body["message"], error.body
        error = raises(openai.BadRequestError, lambda: create(**ask("Hi", max_tokens=100_000, stream=stream)))
        assert "maximum context length" in str(error), error
    error = raises(openai.BadRequestError, lambda: create(**ask(None, messages=[{"role": "user", "content": 5}])))
    assert error.param.startswith("messages"), error.param


@check
def closing_a_stream_cancels_the_request():
    def leave():
        stream = create(**ask(STORY, stream=True, extra_headers={"x-test-hold": "3"}))
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        stream.close()

    _, record = recorded(leave)
    same((record["gone"], record["finish"], record["status"]), (True, CANCELLED, ERR_CANCELLED))
    assert record["completion_tokens"] < 60, record


@check
def a_stream_that_breaks_off_is_an_APIError():
    seen = []

    def read():
        headers = {"x-test-hold": "3", "x-test-deadline": "3000"}
        for chunk in create(**ask(STORY, stream=True, extra_headers=headers)):
            seen.append(chunk)

    def fail():
        return raises(openai.APIError, read)

    error, record = recorded(fail)
    assert "deadline" in error.message, error.message
    same((error.code, error.type, error.param), ("internal_error", "internal_error", None))
    same((record["finish"], record["status"]), (CANCELLED, ERR_DEADLINE))
    assert joined(seen, "content").startswith("Once"), seen


@check
def what_the_server_does_not_know_is_no_fault():
    request = ask("Hello", user="somebody", extra_body={"no_such_field": {"a": 1}})
    answer = create(**request, extra_headers={"x-unknown": "1"}, extra_query={"api-version": "1"})
    same(answer.choices[0].message.content, "Hello! How can I help you?")


@check
def the_asynchronous_client_reads_the_same():
    async def run():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0) as other:
            stream = await other.chat.completions.create(**ask(SUM, thinking=True, stream=True))
            return [chunk async for chunk in stream]

    found = asyncio.run(run())
    same(joined(found, "content"), "23 + 45 = 68")


main()
