"""snug convert: weights into other shards and dtypes."""
import json
import resource
import signal
import struct
import subprocess
import time

from command import SNUG, CommandTest

RUN = ("--model", "model.json", "--device", "cpu", "--data", "book.txt", "--seq-len", "32", "--steps", "1", "--lr", "0.003")


def read_safetensors(path):
    """Name: (dtype, shape, bytes)."""
    data = path.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length:]
    return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def bf16_of(fp32):
    """To nearest, ties to even."""
    values = struct.unpack(f"<{len(fp32) // 4}I", fp32)
    return struct.pack(f"<{len(values)}H", *((value + 0x7FFF + (value >> 16 & 1)) >> 16 for value in values))


class Convert(CommandTest):
    def setUp(self):
        super().setUp()
        self.write_model()
        self.write("book.txt", "To be, or not to be, that is the question. " * 20)

    def train(self, *flags):
        self.succeeds("train", *RUN, *flags, "--out-dir", "run")
        return self.folder / "run" / "state" / "step-1"

    def loss(self, model):
        return self.json("eval", "--model", model, "--device", "cpu", "--data", "book.txt", "--seq-len", 32)["loss"]

    def assert_same(self, one, other):
        """Without a comparison in words, which takes minutes."""
        self.assertEqual(set(one), set(other))
        for name in one:
            self.assertTrue(one[name] == other[name], name)

    def test_shards_and_back(self):
        state = self.train()
        document = self.json("convert", state, "parts", "--shard-size", "100KB")
        self.assertGreater(document["files"], 3)
        index = self.read("parts/model.safetensors.index.json")
        self.assertEqual(index["metadata"]["total_size"], document["bytes"])
        self.assertEqual(len(index["weight_map"]), document["tensors"])
        for path in (self.folder / "parts").glob("*.safetensors"):
            self.assertLess(path.stat().st_size, 110_000)
        self.assertEqual(self.loss("parts"), self.loss(state))
        self.succeeds("convert", "parts", "whole")
        self.assert_same(read_safetensors(self.folder / "whole" / "model.safetensors"), read_safetensors(state / "model.safetensors"))

    def test_dtypes(self):
        state = self.train()
        self.succeeds("convert", state, "half", "--dtype", "bf16")
        whole, half = read_safetensors(state / "model.safetensors"), read_safetensors(self.folder / "half" / "model.safetensors")
        for name, (dtype, shape, data) in whole.items():
            self.assertTrue(half[name] == ("BF16", shape, bf16_of(data)), name)
        self.assertEqual(self.read("half/config.json")["dtype"], "bfloat16")
        self.assertAlmostEqual(self.loss("half"), self.loss(state), delta=0.02)

    def test_a_state_in_bf16_has_all_bits_in_fp32(self):
        for master in ("split", "fp32"):
            state = self.train("--precision", "bf16", "--master", master)
            self.succeeds("convert", state, f"exact-{master}", "--dtype", "fp32")
            (self.folder / "run").rename(self.folder / f"run-{master}")
        split, whole = (read_safetensors(self.folder / f"exact-{master}" / "model.safetensors") for master in ("split", "fp32"))
        self.assert_same(split, whole)
        half = read_safetensors(self.folder / "run-split" / "state" / "step-1" / "model.safetensors")
        name = "model.layers.0.mlp.up_proj.weight"
        self.assertTrue(bf16_of(split[name][2]) == half[name][2])
        self.assertNotEqual(split[name][2][:2], b"\0\0")  # not only rounded numbers

    def test_small_files_go_along(self):
        state = self.train()
        (state / "tokenizer.json").write_text("{}")
        (state / "pytorch_model.bin").write_bytes(b"x")
        self.succeeds("convert", state, "copy")
        self.assertEqual({path.name for path in (self.folder / "copy").iterdir()}, {"config.json", "model.safetensors", "tokenizer.json"})

    def test_what_a_dtype_cannot_hold(self):
        state = self.train()
        self.succeeds("convert", state, "copy")
        path = self.folder / "copy" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-4] + struct.pack("<f", 70000))
        self.refuses("convert", "copy", "half", "--dtype", "fp16", says=["holds 70000, more than F16 can"])
        self.succeeds("convert", "copy", "short", "--dtype", "bf16")
        path.write_bytes(path.read_bytes()[:-8] + struct.pack("<ff", float("nan"), -70000))
        self.refuses("convert", "copy", "half", "--dtype", "fp16", says=["holds -70000, more than F16 can"])

    def test_what_it_refuses(self):
        state = self.train()
        (self.folder / "there").mkdir()
        self.refuses("convert", state, "there", says=["there", "already"])
        self.refuses("convert", "nowhere", "new", says=["nowhere", "no weights"])
        self.refuses("convert", "run", "new", says=["run is a run", "run/state/step-N"])
        self.refuses("convert", state / "model.safetensors", "new", says="give the folder")
        self.refuses("convert", state, "new", "--dtype", "int8", says="--dtype")
        self.refuses("convert", state, "new", "--shard-size", "0", says="0")

    def test_ctrl_c_leaves_nothing(self):
        tensors = {f"t{i}": {"dtype": "BF16", "shape": [500_000], "data_offsets": [i * 1_000_000, (i + 1) * 1_000_000]} for i in range(300)}
        header = json.dumps(tensors).encode()
        (self.folder / "large").mkdir()
        with open(self.folder / "large" / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + 300_000_000)  # nothing on the disk
        before = self.files()
        process = subprocess.Popen([SNUG, "convert", "large", "new", "--dtype", "fp32"], cwd=self.folder, stderr=subprocess.PIPE, text=True)
        while not (self.folder / ".new.part").exists():
            self.assertIsNone(process.poll())
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 128 + signal.SIGINT, errors)
        self.assertIn("new: stopped", errors)
        self.assertEqual(self.files(), before)

    def test_a_full_disk_leaves_nothing(self):
        state = self.train()
        before = self.files()
        result = self.snug("convert", state, "new", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)))
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(self.files(), before)
