"""Files that are not what they should be, and disks that are full."""
import fcntl
import json
import resource
import struct

from command import SMALL, CommandTest

CONFIG = {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
          "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
RUN = ("train", "--steps", "1", *SMALL)


class BadData(CommandTest):
    def test_token_files(self):
        tokens = list(range(200))
        self.write_tokens("short.bin", tokens, count=300)
        self.write_tokens("magic.bin", tokens, magic=1234)
        self.write_tokens("version.bin", tokens, version=9)
        self.write_tokens("vocabulary.bin", tokens + [256])
        self.write_tokens("few.bin", tokens[:16])
        self.write("header.bin", b"\0" * 100)
        self.write("empty.txt", b"")
        for name, says in [("missing.bin", "No such file"), ("short.bin", "cut short"), ("magic.bin", "1234"),
                           ("version.bin", "version"), ("vocabulary.bin", "256 at position 200"),
                           ("few.bin", "sequence length 16"), ("header.bin", "header"), ("empty.txt", "empty"),
                           (".", "folder")]:
            with self.subTest(name):
                self.refuses(*RUN, "--data", name, says=[name, says])

    def test_a_good_token_file_is_read(self):
        self.write_tokens("good.bin", list(range(200)))
        self.succeeds(*RUN, "--data", "good.bin")

    def test_a_folder_stands_for_its_weights_and_is_not_trained_from_scratch_without(self):
        (self.folder / "published").mkdir()
        self.write("published/config.json", json.dumps(CONFIG))
        self.refuses(*RUN, "--model", "published", says=["published", "no weights", "model.safetensors"])
        self.write("published/model.safetensors", b"")
        self.refuses(*RUN, "--model", "published", says=["published/model.safetensors", "0 bytes"])
        self.write("published/model.safetensors", struct.pack("<Q", 2) + b"{}")
        self.refuses(*RUN, "--model", "published", says=["published", "is in no file"])

    def test_sequences_longer_than_the_data_or_the_model(self):
        self.write("book.txt", "to be or not to be")
        self.refuses("train", "--device", "cpu", "--data", "book.txt", "--seq-len", 100, says=["book.txt", "100"])
        self.refuses("train", "--device", "cpu", "--seq-len", 5000, says=["--seq-len 5000", "4096"])

    def test_text_is_not_for_a_published_vocabulary(self):
        self.write("book.txt", "to be or not to be" * 100)
        self.refuses("train", "--device", "cpu", "--model", "llama2-7b", "--data", "book.txt",
                     says=["book.txt", "llama2-7b", "tools/tokenize.py"])


class BadModel(CommandTest):
    def test_a_good_config_is_read(self):
        self.write("model/config.json", json.dumps(CONFIG))
        self.assertIn("runs/model-1", self.succeeds(*RUN, "--model", "model/config.json"))

    def test_configs_with_wrong_values(self):
        for key, value in [("hidden_size", "32"), ("num_hidden_layers", 1.5), ("vocab_size", None), ("vocab_size", -1),
                           ("rope_theta", "big"), ("tie_word_embeddings", 1), ("model_type", "bert"), ("hiden_size", 32)]:
            with self.subTest(key=key, value=value):
                self.write("config.json", json.dumps({**CONFIG, key: value}))
                self.refuses(*RUN, "--model", "config.json", says=["config.json", key])

    def test_configs_that_are_not_json(self):
        for text in ("", "{", "[1]", '{"a": 1, "a": 2}'):
            with self.subTest(text):
                self.write("config.json", text)
                self.refuses(*RUN, "--model", "config.json", says="config.json")


class BadOutput(CommandTest):
    def test_an_out_dir_that_cannot_be_written(self):
        self.write("file", "in the way")
        for out in ("file", "file/run", "/proc/run"):
            with self.subTest(out):
                self.refuses(*RUN, "--out-dir", out, says=["--out-dir", out])

    def test_an_out_dir_that_holds_a_run(self):
        self.succeeds(*RUN, "--out-dir", "run")
        self.refuses(*RUN, "--out-dir", "run", says=["--out-dir run", "already holds a run"])

    def test_the_place_of_a_run_that_never_stepped_may_be_taken(self):
        self.succeeds("plan", *SMALL, "--out", "plan.json")
        self.write("plan.json", json.dumps({**self.read("plan.json"), "budget_bytes": 2**20}))
        result = self.snug(*RUN, "--out-dir", "run", "--plan", "plan.json")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("out of budget", result.stderr)
        self.succeeds("report", "run/trace")  # shows why
        self.succeeds(*RUN, "--out-dir", "run")
        self.assertIsNone(self.read("run/config.json")["budget_bytes"])

    def test_two_runs_do_not_share_a_folder(self):
        run = self.folder / "run"
        run.mkdir()
        self.write("run/config.json", "{}")
        with open(run / "metrics.jsonl", "w") as metrics:
            fcntl.flock(metrics, fcntl.LOCK_EX)
            self.refuses(*RUN, "--out-dir", "run", says=["--out-dir run", "another run"])

    def test_a_folder_with_a_config_of_its_own_is_left_alone(self):
        (self.folder / "model").mkdir()
        self.write("model/config.json", "{}")
        self.refuses(*RUN, "--out-dir", "model", says=["--out-dir model", "config.json"])

    def test_a_failed_profile_leaves_the_older_trace(self):
        self.succeeds("profile", *SMALL, "--steps", 1, "--out", "a.trace")
        before = self.files()
        self.full_disk("profile", *SMALL, "--out", "a.trace", "--force")
        self.assertEqual(self.files(), before)

    def test_a_trace_that_cannot_be_written(self):
        self.refuses("profile", *SMALL, "--out", "missing/a.trace", says="missing/a.trace")

    def full_disk(self, *arguments):
        """No file may grow above 2 KiB: a whole config.json fits, a trace does not."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
        result = self.snug(*arguments, preexec_fn=limit)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertRegex(result.stderr.splitlines()[-1], "^snug: .*trace.*cannot write")
        for word in ("terminate", "backtrace", "frame #"):
            self.assertNotIn(word, result.stderr)

    def test_a_disk_that_fills_up_leaves_no_half_of_a_trace(self):
        self.full_disk("profile", *SMALL, "--out", "a.trace")
        self.assertEqual(self.files(), [])
        self.full_disk(*RUN, "--out-dir", "run")
        self.assertEqual({path.name for path in (self.folder / "run").iterdir()}, {"config.json", "metrics.jsonl"})
        json.loads((self.folder / "run" / "config.json").read_text())
