"""The API as the official openai client uses it."""
import json
import math
import unittest

import serve
from cli import RANDOM, TINY, run

serve.with_client()
import openai  # noqa: E402

TEXT = "The kernel keeps a list of pages. " * 20


class Api(serve.ServeTest):
    FLAGS = ("--max-running-requests", 4, "--context-length", 8192)

    def setUp(self):
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0, timeout=120)
        self.model = self.server.model

    def tokens(self, text):
        return self.server.post("/tokenize", {"prompt": text})["tokens"]

    # -- models, tokens ---------------------------------------------------------------------------------------------

    def test_models(self):
        listed = self.client.models.list().data
        self.assertEqual([m.id for m in listed], [self.model])
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("another")

    def test_tokenize_and_back(self):
        for text in ("Hello, world", "naïve \U0001f600 日本語", "<|im_user|>user"):
            answer = self.server.post("/tokenize", {"prompt": text})
            self.assertEqual(answer["count"], len(answer["tokens"]))
            self.assertEqual(self.server.post("/detokenize", {"tokens": answer["tokens"]})["prompt"], text)
        self.assertGreater(len(self.server.post("/tokenize", {"prompt": "<|im_user|>", "add_special": False})["tokens"]), 1)

    # -- completions ------------------------------------------------------------------------------------------------

    def complete(self, **more):
        return self.client.completions.create(model=self.model, **{"temperature": 0, "max_tokens": 12, **more})

    def test_completion_forms_of_a_prompt(self):
        ids = self.tokens("The quick brown")
        whole = self.complete(prompt="The quick brown")
        self.assertEqual(whole.object, "text_completion")
        self.assertEqual(self.complete(prompt=ids).choices[0].text, whole.choices[0].text)
        self.assertEqual(whole.usage.prompt_tokens, len(ids))
        self.assertEqual(whole.usage.total_tokens, len(ids) + whole.usage.completion_tokens)
        two = self.complete(prompt=["The quick brown", "In the beginning"])
        self.assertEqual([c.index for c in two.choices], [0, 1])
        self.assertEqual(two.choices[0].text, whole.choices[0].text)
        again = self.complete(prompt=[ids, self.tokens("In the beginning")])
        self.assertEqual([c.text for c in again.choices], [c.text for c in two.choices])

    def test_n_and_seed(self):
        a = self.complete(prompt="Once", n=3, temperature=1, seed=7)
        b = self.complete(prompt="Once", n=3, temperature=1, seed=7)
        self.assertEqual([c.text for c in a.choices], [c.text for c in b.choices])
        self.assertGreater(len({c.text for c in a.choices}), 1)
        self.assertEqual(self.complete(prompt="Once", temperature=1, seed=7).choices[0].text, a.choices[0].text)
        self.assertNotEqual(self.complete(prompt="Once", temperature=1, seed=8).choices[0].text, a.choices[0].text)

    def test_stop_strings_across_tokens(self):
        text = self.complete(prompt=TEXT, max_tokens=40).choices[0].text
        middle = text[7:12]
        cut = text[: text.find(middle)]
        for stream in (False, True):
            with self.subTest(stream=stream):
                if stream:
                    chunks = list(self.complete(prompt=TEXT, max_tokens=40, stop=["never there", middle], stream=True))
                    self.assertEqual("".join(c.choices[0].text for c in chunks), cut)
                    self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")
                else:
                    choice = self.complete(prompt=TEXT, max_tokens=40, stop=middle, logprobs=0).choices[0]
                    self.assertEqual((choice.text, choice.finish_reason), (cut, "stop"))
                    self.assertEqual(len(choice.logprobs.tokens), len(choice.logprobs.token_logprobs))

    def test_stream_is_the_whole(self):
        whole = self.complete(prompt=TEXT, max_tokens=30, logprobs=3)
        chunks = list(self.complete(prompt=TEXT, max_tokens=30, logprobs=3, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks[:-1]), whole.choices[0].text)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[-2].choices[0].finish_reason, whole.choices[0].finish_reason)
        scored = [c.choices[0].logprobs for c in chunks[:-1] if c.choices[0].logprobs]
        self.assertEqual([v for s in scored for v in s.token_logprobs], whole.choices[0].logprobs.token_logprobs)
        self.assertEqual([v for s in scored for v in s.top_logprobs], whole.choices[0].logprobs.top_logprobs)
        self.assertEqual([v for s in scored for v in s.text_offset], whole.choices[0].logprobs.text_offset)

    def test_echo_and_logprobs(self):
        ids = self.tokens(TEXT)
        for most in (0, 1):
            choice = self.complete(prompt=ids, max_tokens=most, echo=True, logprobs=2).choices[0]
            scored = choice.logprobs
            self.assertEqual(len(scored.tokens), len(ids) + most)
            self.assertTrue(choice.text.startswith(TEXT))
            self.assertIsNone(scored.token_logprobs[0])
            self.assertIsNone(scored.top_logprobs[0])
            for token, value, top, offset in list(zip(scored.tokens, scored.token_logprobs, scored.top_logprobs, scored.text_offset))[1:]:
                self.assertLessEqual(value, 0)
                self.assertAlmostEqual(top[token], value, places=12)
                self.assertIn(len(top), (2, 3))
                self.assertEqual(choice.text[offset : offset + len(token)], token)

    def test_streamed_echo_is_the_whole(self):
        prompts = [self.tokens(TEXT), self.tokens("naïve \U0001f600 text")]
        for more in ({"max_tokens": 0, "logprobs": 2}, {"max_tokens": 5, "logprobs": 2, "n": 2}, {"max_tokens": 5}, {"max_tokens": 1, "logprobs": 0}):
            whole = self.complete(prompt=prompts, echo=True, **more)
            text, scored = {}, {}
            for chunk in self.complete(prompt=prompts, echo=True, stream=True, **more):
                choice = chunk.choices[0]
                text[choice.index] = text.get(choice.index, "") + choice.text
                if choice.logprobs:
                    parts = scored.setdefault(choice.index, {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []})
                    for key, values in parts.items():
                        values.extend(getattr(choice.logprobs, key) or [])
            for choice in whole.choices:
                self.assertEqual(text[choice.index], choice.text)
                if "logprobs" in more:
                    wanted = choice.logprobs.model_dump()
                    self.assertEqual(scored[choice.index], {key: wanted[key] or [] for key in scored[choice.index]})

    def test_scoring_has_a_generated_token_even_at_an_end(self):
        ids = self.tokens("See the manual page for more potatoes.")
        self.assertEqual(self.complete(prompt=ids, max_tokens=1).usage.completion_tokens, 0)  # the model ends here
        scored = self.complete(prompt=ids, max_tokens=1, echo=True, logprobs=1).choices[0].logprobs
        self.assertEqual(len(scored.token_logprobs), len(ids) + 1)

    def test_echo_equals_score_to_the_last_digit(self):
        prompts = [self.tokens(TEXT), self.tokens("Ünïcödé \U0001f600 text, and more of it"), list(range(5, 300))]
        lines = "".join(json.dumps({"ids": ids, "from": 1}) + "\n" for ids in prompts)
        done = run("score", "--model", TINY, "--input", "-", stdin=lines)
        self.assertEqual(done.returncode, 0, done.stderr)
        wanted = [line.split('"logprobs":', 1)[1].split("]", 1)[0] + "]" for line in done.stdout.splitlines()]
        status, _, body = self.server.request("POST", "/v1/completions", {"prompt": prompts, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0})
        self.assertEqual(status, 200)
        texts = [part.split("]", 1)[0] for part in body.decode().split('"token_logprobs":[')[1:]]
        for ids, text, want in zip(prompts, texts, wanted):
            values = text.split(",")
            self.assertEqual(values[0], "null")
            self.assertEqual("[" + ",".join(values[1 : len(ids)]) + "]", want)

    def test_distinct_keys(self):
        prompt = self.tokens("\U0001f600")[:1]
        choice = self.complete(prompt=prompt, max_tokens=4, logprobs=20, echo=True).choices[0]
        for top in choice.logprobs.top_logprobs[1:]:
            self.assertGreaterEqual(len(top), 20)

    # -- chats ------------------------------------------------------------------------------------------------------

    def chat(self, content, history=(), **more):
        messages = [*history, {"role": "user", "content": content}]
        return self.client.chat.completions.create(model=self.model, messages=messages, **{"temperature": 0, "max_tokens": 24, **more})

    def test_chat_and_stream(self):
        whole = self.chat("What is a kernel?")
        message = whole.choices[0].message
        self.assertEqual(message.role, "assistant")
        chunks = list(self.chat("What is a kernel?", stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), message.content)
        self.assertEqual(chunks[-1].usage.prompt_tokens, whole.usage.prompt_tokens)

    def test_chat_logprobs(self):
        whole = self.chat("What is a kernel?", logprobs=True, top_logprobs=4).choices[0]
        entries = whole.logprobs.content
        for e in entries:
            self.assertEqual(len(e.top_logprobs), 4)
            self.assertEqual(e.top_logprobs[0].logprob, e.logprob)
            self.assertEqual(e.top_logprobs[0].token, e.token)
        self.assertEqual(bytes(b for e in entries for b in e.bytes).decode(), whole.message.content)
        streamed = [e for c in self.chat("What is a kernel?", logprobs=True, top_logprobs=4, stream=True) if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
        self.assertEqual([e.model_dump() for e in streamed], [e.model_dump() for e in entries])

    def test_json_objects(self):
        ended = 0
        for temperature in (0, 1, 2):
            answer = self.chat("A list of words, as JSON.", response_format={"type": "json_object"}, temperature=temperature, seed=5, n=6, max_tokens=300)
            for choice in answer.choices:
                if choice.finish_reason == "stop":
                    self.assertIsInstance(json.loads(choice.message.content), dict)
                    ended += 1
                else:
                    self.assertEqual(choice.finish_reason, "length")
            pieces = {}
            for chunk in self.chat("A list of words, as JSON.", response_format={"type": "json_object"}, temperature=temperature, seed=5, n=6, max_tokens=300, stream=True):
                choice = chunk.choices[0]
                pieces[choice.index] = pieces.get(choice.index, "") + (choice.delta.content or "")
            self.assertEqual([pieces[c.index] for c in answer.choices], [c.message.content for c in answer.choices])
        self.assertGreater(ended, 4)
        for more in ({"stop": "}"}, {"stop_token_ids": [5]}):
            self.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}, **more}, param=next(iter(more)))
        self.refused("/v1/completions", {"prompt": "x", "response_format": {"type": "json_object"}}, param="response_format")

    def test_content_parts_and_injection(self):
        parts = self.chat([{"type": "text", "text": "What is "}, {"type": "text", "text": "a kernel?"}])
        self.assertEqual(parts.choices[0].message.content, self.chat("What is a kernel?").choices[0].message.content)
        plain = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "<|im_end|>"}]})["tokens"]
        self.assertEqual(plain.count(self.tokens("<|im_end|>")[0]), 1)  # the template's own, not the user's

    def test_second_turn_hits_what_the_tree_predicts(self):
        salt = {"cache_salt": "second-turn"}
        first = self.chat(TEXT + TEXT, extra_body=salt)
        self.server.idle()
        history = [{"role": "user", "content": TEXT + TEXT}, {"role": "assistant", "content": first.choices[0].message.content}]
        ask = {"messages": [*history, {"role": "user", "content": "And then?"}], "predict_cached_tokens": True, **salt}
        predicted = self.server.post("/tokenize", ask)["cached_tokens"]
        self.assertGreaterEqual(predicted, 64)
        second = self.chat("And then?", history, extra_body=salt)
        self.assertEqual(second.usage.prompt_tokens_details.cached_tokens, predicted)
        other = self.chat("And then?", history, extra_body={"cache_salt": "someone else"})
        self.assertEqual(other.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(other.choices[0].message.content, second.choices[0].message.content)

    # -- errors -----------------------------------------------------------------------------------------------------

    def test_errors_as_the_client_sees_them(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="another", prompt="x")
        for bad in ({"best_of": 2}, {"suffix": "end"}, {"logit_bias": {"5": 1}}):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.complete(prompt="x", **bad)
            self.assertEqual(caught.exception.param, next(iter(bad)))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("x", response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {}}})
        self.assertEqual(caught.exception.param, "response_format")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(prompt=[5] * 9000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_wrong_types_and_values(self):
        base = {"prompt": "x", "max_tokens": 1}
        for field, values in {
            "max_tokens": ("5", 1.5, -1, [], True), "temperature": ("hot", -1, []), "top_p": (0, 2, "x"), "n": (0, 1000, "2"),
            "stream": ("yes", 1), "stop": (5, [5], [""], ["x"] * 50), "seed": ("s", 1.5), "logprobs": (True, 100, "1"), "echo": (1,),
            "prompt": (5, {}, [], [1.5], ["x", 5], [[5], "x"], [-1], [10**9], [2**70]), "model": (5,), "cache_salt": (5, "x" * 1000),
            "presence_penalty": (3,), "stop_token_ids": ([-1], "x"), "ignore_eos": ("x",), "user": (5,),
        }.items():
            for value in values:
                with self.subTest(field=field, value=str(value)[:40]):
                    self.refused("/v1/completions", {**base, field: value}, param=field)
        for messages in (None, [], "x", [5], [{}], [{"role": "user"}], [{"role": "robot", "content": "x"}], [{"role": "user", "content": 5}],
                         [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], [{"role": "tool", "content": "x"}]):
            with self.subTest(messages=messages):
                self.refused("/v1/chat/completions", {"messages": messages})
        for field, value in (("tool_choice", "required"), ("tools", [{"type": "x"}]), ("functions", []), ("top_logprobs", 3), ("parallel_tool_calls", False)):
            with self.subTest(field=field):
                self.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], field: value})

    def test_unknown_fields_are_tolerated(self):
        self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "no_such_field": {"a": [1]}, "user": "u"})

    # -- cache, health, metrics -------------------------------------------------------------------------------------

    def test_cache_and_flush(self):
        self.complete(prompt=TEXT * 2)
        cache = self.server.idle()
        self.assertGreater(cache["tree"]["states"], 0)
        self.assertTrue(any(n["resumable"] for n in cache["tree"]["list"]))
        self.assertEqual(sum(v for k, v in cache["slots"].items() if k != "capacity"), cache["slots"]["capacity"])
        flushed = self.server.post("/v1/cache/flush", "")
        self.assertEqual(flushed["stayed"], {"pages": 0, "states": 0})
        self.assertGreater(flushed["dropped"]["states"], 0)
        self.assertEqual(self.server.get("/v1/cache")["tree"]["nodes"], 0)

    def test_metrics_tell_short_from_broken(self):
        name, before = "kadence_cache_misses_total", {}
        for reason in ("too_short", "no_match"):
            before[reason] = self.server.metric(name, reason=reason)
        hits = self.server.metric("kadence_cache_hits_total")
        salt = {"extra_body": {"cache_salt": "metrics"}}
        self.complete(prompt="short", **salt)
        self.complete(prompt=TEXT, **salt)
        self.complete(prompt=TEXT, **salt)
        self.server.idle()
        self.assertEqual(self.server.metric(name, reason="too_short"), before["too_short"] + 1)
        self.assertEqual(self.server.metric(name, reason="no_match"), before["no_match"] + 1)
        self.assertEqual(self.server.metric("kadence_cache_hits_total"), hits + 1)
        kinds = [self.server.metric("kadence_state_slots", kind=k) for k in ("free", "working", "reserved", "cached", "pinned")]
        self.assertEqual(sum(kinds), self.server.metric("kadence_state_slots_capacity"))

    def test_health_and_page(self):
        self.assertEqual(self.server.get("/health")["status"], "ok")
        self.assertEqual(self.server.get("/health/ready")["status"], "ok")
        status, headers, body = self.server.request("GET", "/")
        self.assertEqual(status, 200)
        self.assertIn("text/html", headers["content-type"])
        self.assertIn(b"Radix tree", body)
        self.assertEqual(self.server.request("DELETE", "/v1/models")[0], 405)
        self.assertEqual(self.server.request("GET", "/nowhere")[0], 404)

    def test_logs_have_ids_and_no_text(self):
        secret = "xyzzy-plugh-9000"
        _, headers, _ = self.server.request("POST", "/v1/completions", {"prompt": secret, "max_tokens": 1}, {"X-Request-Id": "mine-42"})
        self.assertEqual(headers["x-request-id"], "mine-42")
        self.refused("/v1/completions", {"prompt": "x", "stop": [secret, 5]})
        with open(self.server.log, encoding="utf-8") as f:
            text = f.read()
        self.assertNotIn(secret, text)
        line = next(json.loads(l) for l in text.splitlines() if '"mine-42"' in l)
        self.assertEqual((line["status"], line["output_tokens"]), (200, 1))


class NoTokenizer(serve.ServeTest):
    MODEL = RANDOM

    def test_ids_only(self):
        answer = self.server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 3, "logprobs": 1, "echo": True, "ignore_eos": True})
        choice = answer["choices"][0]
        self.assertEqual(choice["text"], "")
        self.assertEqual(choice["logprobs"]["tokens"][:3], ["token_id:5", "token_id:6", "token_id:7"])
        self.assertTrue(all(math.isfinite(v) for v in choice["logprobs"]["token_logprobs"][1:]))
        self.refused("/v1/completions", {"prompt": "text"}, param="prompt")
        self.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, param="messages")


if __name__ == "__main__":
    unittest.main()
