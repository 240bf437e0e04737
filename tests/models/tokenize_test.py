"""tools/tokenize.py with a tokenizer made here, and its files in snug. Environment: SNUG. Run by the interpreter of tools/reference_env.sh."""
import array
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import tokenizers

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "tokenize.py"
TEXT = "to be or not to be, that is the question; whether 'tis nobler in the mind to suffer\n" * 20


class TokenizeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.tokenizer = tokenizers.ByteLevelBPETokenizer()
        self.tokenizer.train_from_iterator([TEXT], vocab_size=300, special_tokens=["<end>"], show_progress=False)
        self.tokenizer.save(str(self.folder / "tokenizer.json"))
        (self.folder / "config.json").write_text(json.dumps({"eos_token_id": self.tokenizer.token_to_id("<end>")}))
        (self.folder / "book.txt").write_text(TEXT)
        (self.folder / "chat.jsonl").write_text(json.dumps({"text": "to suffer"}) + "\n\n" + json.dumps({"text": "the mind"}) + "\n")

    def test_a_model_without_tokenizer_json(self):
        (self.folder / "tokenizer.json").unlink()
        self.tokenizer.save_model(str(self.folder))
        (self.folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "eos_token_id": 0}))
        result = self.run_tool("book.txt", "--out", "book.bin")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.read("book.bin", "H")[1], self.expected(TEXT))

    def test_what_is_no_token_or_no_text(self):
        (self.folder / "latin.txt").write_bytes(b"na\xefve")
        (self.folder / "latin.jsonl").write_bytes(b'{"text": "na\xefve"}')
        for flags, says in [(["latin.txt"], "latin.txt: expected text in UTF-8"), (["latin.jsonl"], "latin.jsonl: expected text in UTF-8"), (["book.txt", "--eos", "-7"], "--eos -7"),
                            (["book.txt", "--eos", "99999999999"], "--eos 99999999999")]:
            result = self.run_tool(*flags, "--out", "x.bin")
            self.assertEqual((result.returncode, says in result.stderr), (2, True), result.stderr)
        (self.folder / "config.json").write_text('{"eos_token_id": []}')
        result = self.run_tool("book.txt", "--out", "x.bin")
        self.assertEqual((result.returncode, "eos_token_id must be" in result.stderr), (2, True), result.stderr)

    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, TOOL, "--model", self.folder, *arguments], capture_output=True, text=True, cwd=self.folder)

    def expected(self, *texts):
        end = self.tokenizer.token_to_id("<end>")
        return [token for text in texts for token in [*self.tokenizer.encode(text).ids, end]]

    def read(self, name, kind):
        data = (self.folder / name).read_bytes()
        header, tokens = array.array("i", data[:1024]), array.array(kind, data[1024:])
        self.assertEqual(header[2], len(tokens))
        return header[:2].tolist(), tokens.tolist()

    def test_both_layouts_and_both_kinds_of_files(self):
        result = self.run_tool("book.txt", "chat.jsonl", "--out", "narrow.bin")
        self.assertEqual(result.returncode, 0, result.stderr)
        tokens = self.expected(TEXT, "to suffer", "the mind")
        self.assertEqual(self.read("narrow.bin", "H"), ([20240520, 1], tokens))
        self.assertEqual(self.run_tool("book.txt", "chat.jsonl", "--out", "wide.bin", "--bits", "32").returncode, 0)
        self.assertEqual(self.read("wide.bin", "I"), ([20240801, 7], tokens))
        model = {"model_type": "llama", "vocab_size": 301, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                 "num_attention_heads": 2, "max_position_embeddings": 64}
        (self.folder / "model.json").write_text(json.dumps(model))
        losses = []
        for name in ("narrow.bin", "wide.bin"):
            run = subprocess.run([os.environ["SNUG"], "train", "--model", "model.json", "--data", name, "--device", "cpu", "--batch-size", "2",
                                  "--seq-len", "16", "--steps", "2", "--no-save", "--json"], capture_output=True, text=True, cwd=self.folder)
            self.assertEqual(run.returncode, 0, run.stderr)
            losses.append(json.loads(run.stdout)["last_loss"])
        self.assertEqual(*losses)

    def test_no_document_is_cut_or_padded(self):
        self.tokenizer.enable_truncation(5)
        self.tokenizer.enable_padding(length=400)
        self.tokenizer.save(str(self.folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.assertEqual(self.run_tool("chat.jsonl", "book.txt", "--out", "x.bin").returncode, 0)
        self.assertEqual(self.read("x.bin", "H")[1], self.expected("to suffer", "the mind", TEXT))

    def test_what_it_refuses_leaves_nothing(self):
        (self.folder / "bad.jsonl").write_text('{"text": "fine"}\n{"txt": 1}\n')
        for arguments, says in [(("bad.jsonl",), 'bad.jsonl:2: expected an object with a string under "text"'), (("none.txt",), "none.txt"),
                                (("--eos", "70000", "--bits", "16", "book.txt"), "does not fit 16 bits")]:
            with self.subTest(arguments):
                result = self.run_tool(*arguments, "--out", "x.bin")
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(says, result.stderr)
                self.assertEqual(list(self.folder.glob("x.bin*")), [])


if __name__ == "__main__":
    unittest.main()
