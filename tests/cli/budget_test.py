"""The budget holds: at the step's own peak a run passes, below it stops and says what was alive."""
from command import SMALL, CommandTest

RUN = ("train", "--steps", "2", *SMALL)


class Budget(CommandTest):
    def setUp(self):
        super().setUp()
        self.peak = self.json(*RUN)["measured"]["peak_bytes"]

    def test_a_run_passes_at_its_own_peak(self):
        document = self.json(*RUN, "--budget", self.peak)
        self.assertEqual(document["budget_bytes"], self.peak)
        self.assertEqual(document["measured"]["peak_bytes"], self.peak)
        self.assertIs(document["within_budget"], True)

    def test_one_percent_less_stops_it_with_a_report(self):
        result = self.snug(*RUN, "--json", "--budget", self.peak * 99 // 100, "--out-dir", "run")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertIn("this run will be stopped", result.stderr)
        report = result.stderr[result.stderr.index("snug: out of budget"):]
        for part in ("parameters", "optimizer", "activations", "region", "layers.", "--micro-batch"):
            self.assertIn(part, report)

    def test_one_byte_less_stops_it_too(self):
        self.assertEqual(self.snug(*RUN, "--budget", self.peak - 1).returncode, 3)
