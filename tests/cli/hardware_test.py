"""Hardware from files: a machine as numbers, which must make sense."""
import json
import pathlib

from command import STEP, CommandTest

HARDWARE = {"name": "mine", "is_gpu": False, "is_estimate": True, "memory_bytes": 2**33, "outside_bytes": 0,
            "host_bytes": 2**33, "matmul_flops_fp32": 1e11, "matmul_flops_bf16": 1e11, "attention_flops": 1e11,
            "memory_rate": 1e10, "adam_rate": 1e9, "peer_rate": 1e9,
            "network_rate": 1e9, "ranks_per_network": 1, "to_host_rate": 0.0, "to_device_rate": 0.0, "both_ways_rate": 0.0,
            "copy_slowdown": 0.0, "operation_seconds": 1e-6, "disk_rate": 0.0, "operators": []}
PLAN = ("plan", *STEP, "--hardware", "hardware.json")


class HardwareFiles(CommandTest):
    def setUp(self):
        super().setUp()
        self.write_model()

    def write_hardware(self, **changes):
        self.write("hardware.json", json.dumps({**HARDWARE, **changes}))

    def test_a_file_is_as_good_as_a_preset(self):
        self.write_hardware()
        plain = self.json(*PLAN)["plain"]
        self.assertIn("on mine", self.succeeds(*PLAN))
        self.write_hardware(matmul_flops_fp32=1e10)
        slower = self.json(*PLAN)["plain"]
        self.assertGreater(slower["step_seconds"], plain["step_seconds"])
        self.assertEqual(slower["peak_bytes"], plain["peak_bytes"])
        document = self.json("train", "--steps", 1, *STEP, "--budget", "5MiB", "--hardware", "hardware.json")
        self.assertEqual(document["predicted"]["peak_bytes"], document["measured"]["peak_bytes"])

    def test_a_measured_h200_is_shipped(self):
        shipped = pathlib.Path(__file__).parents[2] / "hardware" / "h200.json"
        plan = self.json("plan", "--model", "llama-1.3b", "--batch-size", 8, "--seq-len", 4096, "--micro-batch", 1, "--budget", "24GiB",
                         "--hardware", shipped)
        self.assertTrue(plan["fits"])
        self.assertEqual(plan["hardware"], {"name": "NVIDIA H200", "is_estimate": False, "file": str(shipped)})
        self.assertAlmostEqual(plan["plain"]["step_seconds"], 0.52, delta=0.05, msg="as it was measured")

    def test_numbers_that_make_no_sense(self):
        rates = ("matmul_flops_fp32", "matmul_flops_bf16", "attention_flops", "memory_rate", "adam_rate", "peer_rate",
                 "network_rate")
        for key, value in [*((rate, value) for rate in rates for value in (0, -1.5)), ("memory_bytes", 0),
                           ("memory_bytes", -1), ("memory_bytes", 1.5), ("outside_bytes", -1), ("outside_bytes", 2**33),
                           ("to_host_rate", -1), ("to_device_rate", -1), ("operation_seconds", -1e-6),
                           ("both_ways_rate", -1), ("ranks_per_network", 0), ("ranks_per_network", 1.5), ("copy_slowdown", -0.1), ("disk_rate", -1), ("host_bytes", 0),
                           ("memory_rate", "fast"), ("memory_rate", None), ("name", 1), ("name", ""), ("is_gpu", 1)]:
            with self.subTest(key=key, value=value):
                self.write_hardware(**{key: value})
                self.refuses(*PLAN, says=["hardware.json", key])

    def test_a_gpu_with_half_a_link(self):
        self.write_hardware(is_gpu=True, to_device_rate=1e9)
        self.refuses(*PLAN, says=["hardware.json", "to_host_rate"])

    def test_a_gpu_whose_memory_is_the_hosts_sends_nothing_there(self):
        shipped = pathlib.Path(__file__).parents[2] / "hardware" / "h200.json"
        none = dict.fromkeys(("to_host_rate", "to_device_rate", "both_ways_rate"), 0.0)
        self.write("own.json", json.dumps({**json.loads(shipped.read_text()), **none}))
        flags = ("plan", "--model", "llama-1.3b", "--batch-size", 8, "--seq-len", 4096, "--micro-batch", 1, "--budget", "14GiB")
        self.assertGreater(self.json(*flags, "--hardware", shipped)["predicted"]["host_bytes"], 2**30)
        result = self.snug(*flags, "--hardware", "own.json")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("does not fit 14.00 GiB", result.stderr)

    def test_keys(self):
        self.write_hardware(colour="green")
        self.refuses(*PLAN, says=["hardware.json", "unknown", "colour"])
        for key in HARDWARE:
            with self.subTest(key):
                self.write("hardware.json", json.dumps({k: v for k, v in HARDWARE.items() if k != key}))
                self.refuses(*PLAN, says=["hardware.json", key, "missing", "snug probe"])

    def test_what_is_no_hardware(self):
        self.write("hardware.json", "{")
        self.refuses(*PLAN, says=["hardware.json", "not valid JSON"])
        self.refuses("plan", *STEP, "--hardware", ".", says="folder")
        for verb in ("plan", "train"):
            self.refuses(verb, *STEP, "--budget", "5MiB", "--hardware", "h300",
                         says=["h300", "h200", "a100-40", "rtx4090", "cpu"])
