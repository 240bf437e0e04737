"""Runs bin/snug (environment variable SNUG) in a folder of its own and looks at what it says and leaves behind.

With SNUG_SERVER most runs are forks of one process, which need not load LibTorch again."""
import atexit
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

SNUG = os.environ["SNUG"]
SMALL = ("--device", "cpu", "--batch-size", "2", "--seq-len", "16")  # milliseconds per step with the tiny preset
MODEL = {"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 176,
         "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 128}
STEP = ("--model", "model.json", "--device", "cpu", "--batch-size", "4", "--seq-len", "64")  # needs write_model()


class Server:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folder = tempfile.TemporaryDirectory()
        atexit.register(self.close)

    def close(self):
        self.process.communicate()
        self.folder.cleanup()

    def run(self, arguments, folder, environment):
        stdout, stderr = (pathlib.Path(self.folder.name) / name for name in ("stdout", "stderr"))
        self.process.stdin.write(json.dumps({"arguments": arguments, "folder": str(folder), "environment": environment,
                                             "stdout": str(stdout), "stderr": str(stderr)}) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        return subprocess.CompletedProcess(arguments, status, stdout.read_text(), stderr.read_text())


SERVER = Server(os.environ["SNUG_SERVER"]) if "SNUG_SERVER" in os.environ else None


class CommandTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cache = self.folder / "cache"  # what a developer's own machine was probed at plays no part

    def snug(self, *arguments, **options):
        """With options of subprocess.run a process of its own."""
        if SERVER and not options:
            return SERVER.run([SNUG, *map(str, arguments)], self.folder, {"XDG_CACHE_HOME": str(self.cache)})
        return subprocess.run([SNUG, *map(str, arguments)], cwd=self.folder, text=True, timeout=120,
                              **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
                                 "env": {**os.environ, "XDG_CACHE_HOME": str(self.cache)}, **options})

    def succeeds(self, *arguments, **options):
        result = self.snug(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def json(self, *arguments):
        """The document that --json prints; anything else on standard output would break the parser."""
        return json.loads(self.succeeds(*arguments, "--json"))

    def files(self):
        return sorted((str(path), path.stat().st_size) for path in self.folder.rglob("*"))

    def refuses(self, *arguments, says, status=2):
        """One line on standard error that says all of `says`, nothing on standard output, no file made or changed."""
        before = self.files()
        result = self.snug(*arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("snug: "), result.stderr)
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, result.stderr)
        self.assertEqual(self.files(), before)

    def does_not_fit(self, *arguments):
        """The answer no: status 1, why on standard error, nothing on standard output, no file made or changed."""
        before = self.files()
        result = self.snug(*arguments)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertTrue(result.stderr.startswith("snug: "), result.stderr)
        self.assertEqual(self.files(), before)
        return result.stderr

    def read(self, name):
        return json.loads((self.folder / name).read_text())

    def losses(self, run):
        return [json.loads(line)["loss"] for line in (self.folder / run / "metrics.jsonl").read_text().splitlines()]

    def write_model(self):
        """For STEP: a step of about 9 MiB that a planner can halve."""
        self.write("model.json", json.dumps(MODEL))

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def write_tokens(self, name, tokens, magic=20240520, version=1, count=None):
        """A token file in llm.c's layout with uint16 tokens."""
        header = [magic, version, len(tokens) if count is None else count] + [0] * 253
        return self.write(name, struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}H", *tokens))
