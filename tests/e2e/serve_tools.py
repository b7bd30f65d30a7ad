"""Tool calls in the Kimi form, out and in again, as the openai client sees them. The model is scripted (server/testing)."""
import json
import unittest

import serve

serve.with_client()
import openai  # noqa: E402

TOOLS = [{"type": "function", "function": {"name": "look_up", "description": "Finds a word", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}}]


class Tools(serve.ServeTest):
    @classmethod
    def setUpClass(cls):
        cls.server = serve.Testbed("tools")
        cls.addClassCleanup(cls.server.kill)
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=60)

    def chat(self, messages, **more):
        return self.client.chat.completions.create(model="scripted", messages=messages, temperature=0, **more)

    def test_a_conversation_with_a_tool(self):
        ask = {"role": "user", "content": "naïve \U0001f600"}
        first = self.chat([ask], tools=TOOLS).choices[0]
        self.assertEqual(first.finish_reason, "tool_calls")
        self.assertEqual(first.message.content, "Let me see.")
        (call,) = first.message.tool_calls
        self.assertEqual((call.id, call.type, call.function.name), ("functions.look_up:0", "function", "look_up"))
        self.assertEqual(json.loads(call.function.arguments), {"text": ask["content"]})
        result = {"role": "tool", "tool_call_id": call.id, "content": "a word, simple"}
        second = self.chat([ask, first.message.model_dump(exclude_none=True), result], tools=TOOLS).choices[0]
        self.assertEqual((second.message.content, second.finish_reason), ("It says: a word, simple", "stop"))
        self.assertIsNone(second.message.tool_calls)

    def test_streamed_calls(self):
        content, calls, reason = "", {}, None
        for chunk in self.chat([{"role": "user", "content": "stream"}], tools=TOOLS, stream=True):
            choice = chunk.choices[0]
            content += choice.delta.content or ""
            for d in choice.delta.tool_calls or []:
                call = calls.setdefault(d.index, {"id": d.id, "name": d.function.name, "arguments": ""})
                call["arguments"] += d.function.arguments or ""
            reason = choice.finish_reason or reason
        self.assertEqual((content, reason), ("Let me see.", "tool_calls"))
        self.assertEqual(calls, {0: {"id": "functions.look_up:0", "name": "look_up", "arguments": '{"text":"stream"}'}})

    def test_a_call_can_be_required(self):
        other = [{"type": "function", "function": {"name": "add_one"}}]
        named = {"type": "function", "function": {"name": "add_one"}}
        for choice, name in (("required", "look_up"), (named, "add_one")):
            for stream in (False, True):
                with self.subTest(choice=choice, stream=stream):
                    answer = self.chat([{"role": "user", "content": "now"}], tools=TOOLS + other, tool_choice=choice, stream=stream)
                    if stream:
                        deltas = [d for c in answer for d in c.choices[0].delta.tool_calls or []]
                        found = (deltas[0].id, deltas[0].function.name, "".join(d.function.arguments or "" for d in deltas))
                    else:
                        (call,) = answer.choices[0].message.tool_calls
                        self.assertIsNone(answer.choices[0].message.content)
                        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
                        found = (call.id, call.function.name, call.function.arguments)
                    self.assertEqual(found, (f"functions.{name}:0", name, '{"text":"now"}'))
        # Indices go on from the calls before; what the model would say without being asked does not matter.
        first = self.chat([{"role": "user", "content": "one"}], tools=TOOLS).choices[0].message
        history = [{"role": "user", "content": "one"}, first.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "r"}]
        again = self.chat([*history, {"role": "user", "content": "two"}], tools=TOOLS, tool_choice="required", max_tokens=300).choices[0]
        self.assertEqual(again.message.tool_calls[0].id, "functions.look_up:1")

    def test_one_call_at_most(self):
        choice = self.chat([{"role": "user", "content": "one"}], tools=TOOLS, parallel_tool_calls=False).choices[0]
        self.assertEqual((choice.message.content, choice.finish_reason, len(choice.message.tool_calls)), ("Let me see.", "tool_calls", 1))

    def test_what_cannot_be_enforced_is_refused(self):
        ask = {"messages": [{"role": "user", "content": "x"}]}
        for more, param in (({"tool_choice": "required"}, "tool_choice"), ({"parallel_tool_calls": False}, "parallel_tool_calls"),
                            ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"), ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
                            ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
                            ({"tools": TOOLS, "tool_choice": "required", "stop_token_ids": [5]}, "stop_token_ids"),
                            ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format")):
            with self.subTest(more=more):
                self.refused("/v1/chat/completions", {**ask, **more}, param=param)

    def test_json_objects(self):
        ask = [{"role": "user", "content": '{"a": [1, "\U0001f600"]}'}]  # the scripted model says it back
        self.assertEqual(self.chat(ask, response_format={"type": "json_object"}).choices[0].message.content, ask[0]["content"])
        choice = self.chat([{"role": "user", "content": "no JSON at all"}], response_format={"type": "json_object"}, max_tokens=200).choices[0]
        self.assertEqual(choice.message.content.strip()[0], "{")

    def test_no_tools_no_calls(self):
        for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            choice = self.chat([{"role": "user", "content": "plain words"}], **more).choices[0]
            self.assertEqual((choice.message.content, choice.finish_reason), ("plain words", "stop"))
            self.assertIsNone(choice.message.tool_calls)

    def test_the_cache_knows_the_turns_before(self):
        ask = {"role": "user", "content": "a long question " * 20}
        first = self.chat([ask], tools=TOOLS).choices[0].message
        self.server.idle()
        history = [ask, first.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "yes"}]
        predicted = self.server.post("/tokenize", {"messages": history, "tools": TOOLS, "predict_cached_tokens": True})["cached_tokens"]
        self.assertGreater(predicted, 300)
        self.assertEqual(self.chat(history, tools=TOOLS).usage.prompt_tokens_details.cached_tokens, predicted)


if __name__ == "__main__":
    unittest.main()
