"""snug tune: the largest micro-batch that fits, and no larger one that would."""
from command import STEP, CommandTest

TUNE = ("tune", *STEP[:4], "--batch-size", "6", "--seq-len", "32")


class Tune(CommandTest):
    def setUp(self):
        super().setUp()
        self.write_model()

    def peak(self, micro_batch):
        return self.json("plan", *TUNE[1:], "--micro-batch", micro_batch)["plain"]["peak_bytes"]

    def tune(self, budget, *options):
        document = self.json(*TUNE, "--budget", budget, *options)
        self.assertEqual(document["micro_batch"] * document["accumulation"], 6)
        self.assertEqual(document["predicted"]["peak_bytes"], document["measured"]["peak_bytes"])
        self.assertLessEqual(document["measured"]["peak_bytes"], budget)
        return document

    def test_each_divisor_is_found_at_its_own_peak_and_not_below(self):
        peaks = {micro_batch: self.peak(micro_batch) for micro_batch in (1, 2, 3, 6)}
        self.assertEqual(sorted(peaks.values()), list(peaks.values()))
        for micro_batch, smaller in ((2, 1), (3, 2), (6, 3)):
            with self.subTest(micro_batch):
                document = self.tune(peaks[micro_batch])
                self.assertEqual(document["micro_batch"], micro_batch)
                self.assertEqual(document["measured"]["peak_bytes"], peaks[micro_batch])
                self.assertEqual(self.tune(peaks[micro_batch] - 1)["micro_batch"], smaller)
        why = self.does_not_fit(*TUNE, "--budget", peaks[1] - 1, "--json")
        for part in ("one sequence", "1 byte more", "snug plan"):
            self.assertIn(part, why)

    def test_the_whole_batch_where_there_is_room(self):
        document = self.tune(2**30)
        self.assertEqual((document["micro_batch"], document["accumulation"]), (6, 1))

    def test_what_is_re_made_makes_room(self):
        budget = self.peak(3)
        self.assertGreater(self.tune(budget, "--recompute", "block")["micro_batch"], 3)

    def test_in_words_and_without_leaving_anything(self):
        before = self.files()
        out = self.succeeds(*TUNE, "--budget", "1GiB")
        for part in ("--micro-batch 6 x 1", "--batch-size 6", "predicted", "measured"):
            self.assertIn(part, out)
        self.assertEqual(self.files(), before)

    def test_a_question_without_a_budget_or_with_the_answer(self):
        self.refuses(*TUNE, says="--budget")
        self.refuses(*TUNE, "--budget", "1GiB", "--micro-batch", 2, says="--micro-batch")
        self.refuses(*TUNE, "--budget", "1GiB", "--accumulation", 2, says="--accumulation")
