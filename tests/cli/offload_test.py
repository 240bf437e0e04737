"""--offload by hand: memory moves to the host, the losses stay."""
import unittest

from command import STEP, CommandTest

TRAIN = ("train", *STEP, "--micro-batch", "2", "--steps", "2")


class Offload(CommandTest):
    def setUp(self):
        super().setUp()
        self.write_model()

    def train(self, *flags):
        return self.json(*TRAIN, "--out-dir", "run" + "".join(flags).replace("%", ""), *flags)

    def test_predicted_is_measured_and_the_loss_is_the_same(self):
        plain = self.train()
        self.assertEqual(plain["measured"]["host_bytes"], 0)
        for flags in [("--offload", "all"), ("--offload", "40%"), ("--offload", "100KiB"),
                      ("--offload", "all", "--recompute", "cheap"), ("--offload", "all", "--recompute", "block")]:
            with self.subTest(flags):
                run = self.train(*flags)
                self.assertEqual(run["last_loss"], plain["last_loss"])
                self.assertEqual(run["measured"]["peak_bytes"], run["predicted"]["peak_bytes"])
                self.assertLess(run["measured"]["peak_bytes"], plain["measured"]["peak_bytes"])
                self.assertGreater(run["measured"]["host_bytes"], 0)
                self.assertLessEqual(run["measured"]["host_bytes"], run["predicted"]["host_bytes"])

    def test_a_size_is_a_limit(self):
        self.assertLessEqual(self.train("--offload", "100KiB")["measured"]["host_bytes"], 100 * 1024)

    def test_verify_compares_every_value(self):
        document = self.json("verify", *STEP, "--offload", "all")
        self.assertTrue(document["equal"])
        self.assertGreater(document["values"], 20)

    def test_bad_amounts(self):
        for amount in ("0%", "101%", "-1%", "%", "nan%"):
            self.refuses(*TRAIN, "--offload", amount, says=["--offload", "share above 0 %", amount])
        self.refuses(*TRAIN, "--offload", "some", says=["--offload", "is not a size"])
        self.refuses(*TRAIN, "--offload", "0", says=["--offload"])

    def test_what_a_plan_decides_is_not_asked_for_by_hand(self):
        self.refuses(*TRAIN, "--offload", "all", "--budget", "1GiB", says=["--offload", "--budget"])

    def test_a_lever_that_does_nothing_is_an_error(self):
        result = self.snug(*TRAIN, "--offload", "1", "--out-dir", "run")
        self.assertEqual(result.returncode, 2)
        self.assertIn("moves nothing", result.stderr)

    def test_a_host_budget_that_is_too_small_ends_the_run_before_its_first_step(self):
        result = self.snug(*TRAIN, "--offload", "all", "--host-budget", "64KiB", "--out-dir", "run")
        self.assertEqual(result.returncode, 3)
        self.assertIn("--host-budget", result.stderr)


if __name__ == "__main__":
    unittest.main()
