"""snug report, --help of every verb, and output that cannot be written."""
import os

from command import SMALL, CommandTest


class Report(CommandTest):
    def setUp(self):
        super().setUp()
        self.succeeds("profile", "--out", "a.trace", "--steps", 1, *SMALL)

    def test_text_names_categories_regions_and_operators(self):
        text = self.succeeds("report", "a.trace")
        for part in ("activations", "layers.0", "snug::product", "Operators, over 1 step\n", "Saved for the backward, over 1 step\n"):
            self.assertIn(part, text)

    def test_json_adds_up(self):
        document = self.json("report", "a.trace")
        self.assertEqual(sum(document["bytes"].values()), document["peak_bytes"])
        self.assertEqual(sum(region["total_bytes"] for region in document["regions"]), document["peak_bytes"])
        self.assertEqual(document["about"]["model"], "tiny")
        self.assertFalse(document["cut_short"])

    def test_two_traces_are_compared(self):
        self.succeeds("profile", "--out", "b.trace", "--steps", 1, *SMALL, "--micro-batch", 1)
        self.assertIn("difference", self.succeeds("report", "a.trace", "b.trace"))
        both = self.json("report", "a.trace", "b.trace")
        self.assertNotEqual(both["before"]["peak_bytes"], both["after"]["peak_bytes"])

    def test_a_trace_cut_short_is_read_up_to_the_cut(self):
        whole = (self.folder / "a.trace").read_bytes()
        self.write("cut.trace", whole[:-4])
        self.assertTrue(self.json("report", "cut.trace")["cut_short"])
        self.assertIn("cut short", self.succeeds("report", "cut.trace"))

    def test_a_pipe_is_refused_instead_of_waited_for(self):
        os.mkfifo(self.folder / "pipe")
        self.refuses("report", "pipe", says=["pipe", "regular file"])

    def test_damage_and_foreign_files_are_refused(self):
        whole = bytearray((self.folder / "a.trace").read_bytes())
        whole[len(whole) // 2] ^= 0xFF
        self.write("damaged.trace", bytes(whole))
        self.write("foreign.trace", "# a text\n" * 1000)
        self.write("empty.trace", b"")
        for name in ("damaged.trace", "foreign.trace", "empty.trace", "missing.trace", "."):
            with self.subTest(name):
                self.refuses("report", name, says=name)
        self.refuses("report", "a.trace", "missing.trace", says="missing.trace")

    def test_a_full_standard_output_is_noticed(self):
        with open("/dev/full", "w") as full:
            result = self.snug("report", "a.trace", stdout=full)
        self.assertEqual(result.returncode, 3)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def test_a_full_standard_error_changes_no_status(self):
        with open("/dev/full", "w") as full:
            self.assertEqual(self.snug("report", "missing.trace", stderr=full).returncode, 2)
            self.assertEqual(self.snug("train", "--steps", 1, *SMALL, stderr=full).returncode, 0)


class Help(CommandTest):
    def test_every_verb_teaches_by_examples(self):
        self.assertIn("estimate", self.succeeds("--help"))
        for verb in ("estimate", "train", "profile", "report"):
            with self.subTest(verb):
                text = self.succeeds(verb, "--help")
                self.assertGreaterEqual(text.count("\n  snug "), 2, text)
                for option in ("--json", "--device"):
                    self.assertIn(option, text)

    def test_version(self):
        self.assertRegex(self.succeeds("--version"), r"^snug \d+\.\d+\.\d+, torch 2\.")
