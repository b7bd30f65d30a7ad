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
