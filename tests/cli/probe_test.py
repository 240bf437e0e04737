"""snug probe: measures, writes whole files or none, and plans are made with what it wrote."""
import json
import os
import resource

from command import STEP, CommandTest

TINY = ("probe", "--device", "cpu", "--model", "tiny")
PROBE = (*TINY, "--no-disk")
FIELDS = {"name", "is_gpu", "is_estimate", "memory_bytes", "outside_bytes", "host_bytes", "matmul_flops_fp32",
          "matmul_flops_bf16", "attention_flops", "memory_rate", "adam_rate", "peer_rate", "network_rate", "ranks_per_network", "to_host_rate", "to_device_rate",
          "both_ways_rate", "copy_slowdown", "operation_seconds", "disk_rate", "operators"}


class Probe(CommandTest):
    def setUp(self):
        super().setUp()
        self.write_model()

    def cached(self):
        return self.cache / "snug" / "hardware-cpu.json"

    def test_plans_are_made_with_the_last_probe(self):
        before = self.json("plan", *STEP)
        self.assertEqual(before["hardware"], {"name": "cpu", "is_estimate": True, "file": None})
        self.assertIn("on cpu (an estimate; 'snug probe' measures it)", self.succeeds("plan", *STEP))

        text = self.succeeds(*PROBE)
        self.assertIn(str(self.cached()), text)
        self.assertFalse([line for line in text.splitlines() if line.endswith(" ")])
        hardware = json.loads(self.cached().read_text())
        self.assertIs(hardware["is_estimate"], False)
        self.assertEqual(hardware["disk_rate"], 0)

        after = self.json("plan", *STEP)
        self.assertEqual(after["hardware"], {"name": hardware["name"], "is_estimate": False, "file": str(self.cached())})
        self.assertNotEqual(after["plain"]["step_seconds"], before["plain"]["step_seconds"])
        self.assertEqual(after["plain"]["peak_bytes"], before["plain"]["peak_bytes"])
        said = f"{hardware['name']} (probed: {self.cached()})"
        self.assertIn(f"predicted on {said}", self.succeeds("plan", *STEP))
        self.assertIn(said, self.succeeds("train", "--steps", 1, *STEP, "--budget", "5MiB"))

        named = self.json("plan", *STEP, "--hardware", "cpu")
        self.assertEqual(named, before)
        by_file = self.json("plan", *STEP, "--hardware", self.cached())
        self.assertEqual(by_file, after)

    def test_json_is_the_file(self):
        result = self.snug(*PROBE, "--out", "here.json", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(set(document), FIELDS)
        self.assertEqual(document, self.read("here.json"))
        self.assertIn("probe: attention", result.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["here.json", "model.json"], "no cache, no scratch file")

    def test_the_disk(self):
        self.assertGreater(self.json(*TINY, "--out", "here.json")["disk_rate"], 0)
        self.assertEqual(sorted(os.listdir(self.folder)), ["here.json", "model.json"])

    def test_a_full_disk_leaves_the_old_probe(self):
        self.succeeds(*PROBE)
        old = self.cached().read_text()
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, 5 << 20))
        result = self.snug(*TINY, preexec_fn=limit)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertIn(str(self.cached().parent), result.stderr.splitlines()[-1])
        self.assertEqual(self.cached().read_text(), old)
        self.assertEqual(os.listdir(self.cached().parent), ["hardware-cpu.json"])

    def test_a_probe_that_is_damaged(self):
        self.cached().parent.mkdir(parents=True)
        for content in ("{", "[]", '{"name": "older"}', '{"name": 1}', ""):
            self.cached().write_text(content)
            for verb in ("plan", "train", "tune"):
                with self.subTest(content=content, verb=verb):
                    self.refuses(verb, *STEP, "--budget", "5MiB", says=[str(self.cached()), "snug probe"])
        self.succeeds("plan", *STEP, "--hardware", "cpu")
        self.succeeds(*PROBE)
        self.succeeds("plan", *STEP)

    def test_a_probe_of_another_machine(self):
        self.succeeds(*PROBE)
        hardware = json.loads(self.cached().read_text())
        self.cached().write_text(json.dumps({**hardware, "name": "another"}))
        self.assertIn("is of another", self.succeeds("plan", *STEP))
        self.assertIsNone(self.json("plan", *STEP)["hardware"]["file"])

    def test_where_nothing_can_be_written(self):
        self.refuses(*PROBE, "--out", "nowhere/h.json", says="nowhere/h.json")
        self.refuses(*PROBE, "--out", "model.json/h.json", says="model.json/h.json")
        self.refuses(*PROBE, "--out", ".", says="folder")
        self.refuses(*PROBE, "--out", "/dev/null", says=["/dev/null", "regular file", "--json"])
        self.refuses(*PROBE, "--out", "", says="--out")
        self.cache.write_text("no folder")
        self.refuses(*PROBE, says=str(self.cache))

    def test_without_a_home(self):
        bare = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_CACHE_HOME")}
        result = self.snug(*PROBE, env=bare)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--out FILE", result.stderr)
        self.succeeds("plan", *STEP, env=bare)

    def test_devices_and_models_that_are_not_there(self):
        self.refuses("probe", "--device", "tpu", says=["--device", "tpu"])
        self.refuses("probe", "--device", "cuda:99", says="cuda:99")
        self.refuses("probe", "--device", "cpu", "--model", "llama9", says="llama9")
        self.refuses("probe", "--hardware", "h200", says="--hardware")
        hidden = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "CUDA_VISIBLE_DEVICES": ""}
        result = self.snug("probe", "--device", "cuda", env=hidden)
        self.assertEqual(result.returncode, 2)
        self.assertIn("no GPU found", result.stderr)
        self.assertFalse(self.cache.exists())

    def test_help_has_examples(self):
        text = self.succeeds("probe", "--help")
        for part in ("Examples:", "--device", "--model", "--out", "--no-disk", "--json"):
            self.assertIn(part, text)
        self.assertIn("probe", self.succeeds("--help"))
