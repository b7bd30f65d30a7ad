"""Broken model folders: a clear error that names what is wrong, a non-zero status, no crash."""
import json
import os
import struct
import unittest

from cli import RANDOM, TINY, CliTest, edit_json, read_safetensors, run, write_safetensors


class BadModels(CliTest):
    def broken(self, model, *says, prompt=None):
        ids = self.write("ids", "5 6 7")
        source = ("--prompt", prompt) if prompt else ("--ids", ids)
        return self.refused("generate", "--model", model, *source, "--max-tokens", 2, status=1, says=says)

    def edited_config(self, change):
        model = self.copy_model(name=f"model{len(os.listdir(self.folder))}")
        edit_json(model / "config.json", change)
        return model

    def test_folders_that_are_none(self):
        self.broken(self.folder / "nowhere", "nowhere")
        (self.folder / "bare").mkdir()
        self.broken(self.folder / "bare", "config.json")
        self.broken(self.write("file", "x"), "file")

    def test_config_that_is_no_json(self):
        for i, text in enumerate(("", "{", "[]", "null", "\x00", '{"a":' * 100)):
            model = self.copy_model(name=f"json{i}")
            (model / "config.json").write_text(text)
            self.broken(model, "config.json")

    def test_fields_missing(self):
        for field in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "linear_attn_config"):
            with self.subTest(field=field):
                self.broken(self.edited_config(lambda c, f=field: c.pop(f)), field)
        self.broken(self.edited_config(lambda c: c["linear_attn_config"].pop("num_heads")), "num_heads")

    def test_fields_absurd(self):
        for field, value in (("vocab_size", -1), ("vocab_size", 0), ("vocab_size", 1 << 40), ("vocab_size", "many"), ("vocab_size", 512.5), ("hidden_size", 0), ("hidden_size", 10**12),
                             ("num_hidden_layers", -4), ("num_hidden_layers", 10**9), ("kv_lora_rank", "x"), ("v_head_dim", -16), ("num_experts_per_token", 0),
                             ("num_experts_per_token", 1000), ("rms_norm_eps", "small"), ("rms_norm_eps", -1), ("model_max_length", -5), ("num_attention_heads", [])):
            with self.subTest(field=field, value=value):
                self.broken(self.edited_config(lambda c, f=field, v=value: c.update({f: v})), field)
        for field, value in (("num_heads", 0), ("head_dim", 10**10), ("short_conv_kernel_size", 3), ("kda_layers", [0, 1, 2]), ("kda_layers", [1, 2, 99]), ("kda_layers", [1, 1, 2])):
            with self.subTest(field=field, value=value):
                self.broken(self.edited_config(lambda c, f=field, v=value: c["linear_attn_config"].update({f: v})))

    def test_an_unknown_architecture_lists_the_known(self):
        self.broken(self.edited_config(lambda c: c.update(architectures=["LlamaForCausalLM"], model_type="llama")), "lama", "kimi_linear")

    def test_a_config_that_does_not_fit_its_weights(self):
        self.broken(self.edited_config(lambda c: c.update(hidden_size=128)), "64", "128")
        self.broken(self.edited_config(lambda c: c.update(vocab_size=600)), "600", "512")

    # -- safetensors ------------------------------------------------------------------------------------------------

    def edited_shard(self, change):
        model = self.copy_model(name=f"model{len(os.listdir(self.folder))}")
        shard = sorted(model.glob("*.safetensors"))[0]
        header, data = read_safetensors(shard)
        result = change(header, data, shard)
        if result is not None:
            write_safetensors(shard, *result)
        return model, shard.name

    def first_tensor(self, header):
        return next(k for k in sorted(header) if k != "__metadata__")

    def test_truncated_at_many_places(self):
        size = os.path.getsize(sorted((__import__("pathlib").Path(RANDOM)).glob("*.safetensors"))[0])
        for length in (0, 1, 7, 8, 9, 100, size // 2, size - 1):
            with self.subTest(length=length):
                model, shard = self.edited_shard(lambda h, d, path, n=length: os.truncate(path, n))
                self.broken(model, shard)

    def test_trailing_bytes(self):
        model, shard = self.edited_shard(lambda h, d, path: (h, d + b"\0" * 16))
        self.broken(model, shard)

    def test_header_lengths_that_lie(self):
        for length in (0, 1 << 20, 1 << 40, (1 << 64) - 1):
            def lie(h, d, path, n=length):
                raw = path.read_bytes()
                path.write_bytes(struct.pack("<Q", n) + raw[8:])
            model, shard = self.edited_shard(lie)
            self.broken(model, shard)

    def test_headers_that_are_no_headers(self):
        for text in (b"", b"{", b"[]", b"null", b'{"x":1}', b'{"x":{}}', b"\xff\xfe", b'{"a":' * 5000):
            model, shard = self.edited_shard(lambda h, d, path, t=text: (t, d))
            self.broken(model, shard)

    def test_tensors_with_wrong_facts(self):
        def with_tensor(change):
            def edit(header, data, path):
                change(header[self.first_tensor(header)])
                return header, data
            return edit
        cases = {
            "unknown dtype": lambda t: t.update(dtype="F99"),
            "dtype of another size": lambda t: t.update(dtype="F64"),
            "integers for weights": lambda t: t.update(dtype="I16" if t["dtype"] in ("BF16", "F16") else "I32"),
            "dtype no text": lambda t: t.update(dtype=16),
            "shape no list": lambda t: t.update(shape=7),
            "negative shape": lambda t: t.update(shape=[-1] + t["shape"][1:]),
            "shape too big": lambda t: t.update(shape=[1 << 62, 1 << 62]),
            "shape changed": lambda t: t.update(shape=[s + 1 for s in t["shape"]]),
            "fractional shape": lambda t: t.update(shape=[1.5]),
            "offsets backwards": lambda t: t.update(data_offsets=t["data_offsets"][::-1]),
            "offsets past the end": lambda t: t.update(data_offsets=[t["data_offsets"][0], 1 << 50]),
            "negative offsets": lambda t: t.update(data_offsets=[-8, t["data_offsets"][1]]),
            "three offsets": lambda t: t.update(data_offsets=[0, 1, 2]),
            "no offsets": lambda t: t.pop("data_offsets"),
        }
        for name, change in cases.items():
            with self.subTest(case=name):
                model, shard = self.edited_shard(with_tensor(change))
                self.broken(model, shard)

    def test_overlapping_tensors(self):
        def overlap(header, data, path):
            names = sorted((k for k in header if k != "__metadata__"), key=lambda k: header[k]["data_offsets"])
            a, b = next((a, b) for a in names for b in names
                        if a != b and header[a]["shape"] == header[b]["shape"] and header[a]["dtype"] == header[b]["dtype"])
            header[b]["data_offsets"] = header[a]["data_offsets"]
            return header, data
        model, shard = self.edited_shard(overlap)
        self.broken(model, shard)

    def test_a_tensor_missing_or_unlisted(self):
        def drop(header, data, path):
            names = sorted((k for k in header if k != "__metadata__"), key=lambda k: header[k]["data_offsets"])
            last = names[-1]
            end = header.pop(last)["data_offsets"][0]
            self.dropped = last
            return header, data[:end]
        model, _ = self.edited_shard(drop)
        self.broken(model, self.dropped)

    def test_index_and_shards(self):
        model = self.copy_model(name="noshard")
        shard = sorted(model.glob("*.safetensors"))[1]
        shard.unlink()
        self.broken(model, shard.name)
        os.mkfifo(shard)
        self.broken(model, shard.name, "not a regular file")  # and does not wait for a writer
        model = self.copy_model(name="outside")
        edit_json(model / "model.safetensors.index.json", lambda i: i["weight_map"].update({k: "../" + v for k, v in i["weight_map"].items()}))
        self.broken(model, "../")
        model = self.copy_model(name="badindex")
        (model / "model.safetensors.index.json").write_text("{")
        self.broken(model, "model.safetensors.index.json")
        model = self.copy_model(name="noweights")
        for f in list(model.glob("*.safetensors*")):
            f.unlink()
        self.broken(model, "safetensors")

    def test_weights_that_nobody_reads_are_said(self):
        ids = self.write("ids", "5 6 7")
        quiet = run("generate", "--model", RANDOM, "--ids", ids, "--max-tokens", 1)
        self.assertEqual((quiet.returncode, quiet.stderr), (0, ""))
        model = self.edited_config(lambda c: c.pop("num_shared_experts"))
        loud = run("generate", "--model", model, "--ids", ids, "--max-tokens", 1)
        self.assertEqual(loud.returncode, 0, loud.stderr)
        self.assertRegex(loud.stderr, r"warning: .*: 9 tensors have no place in the model that the config describes, the first is .*shared_experts")

    # -- tokenizer --------------------------------------------------------------------------------------------------

    def test_tokenizers_that_are_broken(self):
        for i, text in enumerate(("", "{", "[]", "{}", '{"model":{"type":"Unigram"}}', '{"model":{"type":"BPE","vocab":[],"merges":[]}}')):
            model = self.copy_model(name=f"tok{i}")
            (model / "tokenizer.json").write_text(text)
            self.broken(model, "tokenizer.json")
        model = self.copy_model(model=TINY, name="merge")
        edit_json(model / "tokenizer.json", lambda t: t["model"]["merges"].append("never seen"))
        self.broken(model, "tokenizer.json", prompt="hello")

    def test_files_beside_the_config(self):
        for text in ("", "[]", "null", "{", '{"eos_token_id": "x"}'):
            model = self.copy_model(name=f"gen{len(os.listdir(self.folder))}")
            (model / "generation_config.json").write_text(text)
            self.broken(model, model / "generation_config.json")
        for text in ("", "[]", "{"):
            model = self.copy_model(model=TINY, name=f"tokconf{len(os.listdir(self.folder))}")
            (model / "tokenizer_config.json").write_text(text)
            self.broken(model, model / "tokenizer_config.json")
        model = self.copy_model(name="kinds")
        config = model / "config.json"
        config.unlink()
        self.broken(model, config, "no such file")
        config.mkdir()
        self.broken(model, config, "folder")
        config.rmdir()
        os.mkfifo(config)
        self.broken(model, config, "FIFO")
        config.unlink()
        config.symlink_to("/dev/zero")
        self.broken(model, config, "device")

    def test_an_index_with_a_wrong_total_is_said(self):
        model = self.copy_model(name="total")
        edit_json(model / "model.safetensors.index.json", lambda i: i["metadata"].update(total_size=7))
        done = run("generate", "--model", model, "--ids", self.write("ids", "5 6 7"), "--max-tokens", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("warning"), 1)
        self.assertRegex(done.stderr, r"index\.json: total_size: wanted the 672528 .* got 7")

    def test_patterns_that_are_wrong_or_explode(self):
        def with_pattern(regex):
            model = self.copy_model(model=TINY, name=f"pattern{len(os.listdir(self.folder))}")
            edit_json(model / "tokenizer.json", lambda t: t["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=regex))
            return model
        model = with_pattern("(((")
        self.broken(model, model / "tokenizer.json", "pattern (((")
        model = with_pattern("(a+)+$")
        self.broken(model, model / "tokenizer.json", "pattern (a+)+$", "steps", prompt="a" * 40 + "b")

    def test_chat_templates_that_are_not_the_built_in_one(self):
        chat = ("--chat", "--prompt", "hello", "--max-tokens", 1, "--ignore-eos")
        plain = run("generate", "--model", TINY, *chat)
        self.assertEqual((plain.returncode, plain.stderr), (0, ""))
        model = self.copy_model(model=TINY)
        recorded = json.loads((model / "tokenizer_config.json").read_text())["chat_template"]
        jinja = model / "chat_template.jinja"
        for text, says in (("<|im_start|>" + recorded, "<|im_start|>"), ("{{ messages }}", "<|im_user|>"), ("", "<|im_user|>")):
            jinja.write_text(text)
            self.refused("generate", "--model", model, *chat, status=1, says=[jinja, says])
            self.ok("generate", "--model", model, "--prompt", "hello", "--max-tokens", 1, "--ignore-eos")  # no chat, no template
        jinja.write_text(recorded + "\n")
        same = run("generate", "--model", model, *chat)
        self.assertEqual((same.returncode, same.stdout, same.stderr), (0, plain.stdout, ""))
        jinja.write_text("{%- if messages[0]['role'] != 'system' -%}<|im_system|>system<|im_middle|>Be brief.<|im_end|>{%- endif -%}" + recorded)
        warned = run("generate", "--model", model, *chat)
        self.assertEqual((warned.returncode, warned.stdout), (0, plain.stdout))
        self.assertRegex(warned.stderr, "warning: .*chat_template.jinja: this template is not known")
        jinja.unlink()
        edit_json(model / "tokenizer_config.json", lambda c: c.update(chat_template=[{"name": "default", "template": "<|user|>" + recorded}]))
        self.refused("generate", "--model", model, *chat, status=1, says=[model / "tokenizer_config.json", "chat_template", "<|user|>"])

    def test_golden_that_is_broken(self):
        model = self.copy_model(name="golden")
        (model / "golden.json").write_text("{")
        self.refused("check", "golden", "--model", model, status=1, says=["golden.json"])
        (model / "golden.json").unlink()
        self.refused("check", "golden", "--model", model, status=1, says=["golden.json"])

    def test_plan_refuses_the_same_configs(self):
        self.refused("plan", "--model", self.edited_config(lambda c: c.pop("hidden_size")), status=1, says=["hidden_size"])
        self.assertTrue(json.loads(self.ok("plan", "--model", RANDOM, "--json")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
