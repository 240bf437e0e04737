"""Plans as files: what cannot be meant is refused before anything is made, what was edited with sense runs."""
import copy
import json

from command import MODEL, STEP, CommandTest

RUN = ("train", "--steps", "1", *STEP)


class PlanFile(CommandTest):
    plan = None  # made once: it is the same for all

    def setUp(self):
        super().setUp()
        self.write_model()
        if PlanFile.plan is None:
            self.succeeds("plan", *STEP, "--budget", "5MiB", "--out", "plan.json")
            PlanFile.plan = self.read("plan.json")
        self.write("plan.json", json.dumps(self.plan))

    def edited(self, change):
        plan = copy.deepcopy(self.plan)
        change(plan)
        self.write("plan.json", json.dumps(plan))

    def refuses_edited(self, change, *says):
        self.edited(change)
        self.refuses(*RUN, "--plan", "plan.json", says=["plan.json", *says])

    def fate(self, plan, region):
        return next(fate for fate in plan["fates"] if region in fate["regions"])


class Contents(PlanFile):
    def test_files_that_are_no_plan(self):
        for text, says in (("", "not valid JSON"), ("{", "not valid JSON"), ("[1]", "expected a JSON object"), ('{"version": 1, "version": 1}', "twice"),
                           (json.dumps(MODEL), "version")):
            with self.subTest(text):
                self.write("plan.json", text)
                self.refuses(*RUN, "--plan", "plan.json", says=["plan.json", says])
        self.refuses(*RUN, "--plan", "missing.json", says=["missing.json", "No such file"])
        self.refuses(*RUN, "--plan", ".", says="folder")
        self.refuses("verify", *STEP, "--plan", "missing.json", says=["missing.json", "No such file"])

    def test_unknown_keys(self):
        for where, place in (("", lambda plan: plan), ("step", lambda plan: plan["step"]),
                             ("predicted", lambda plan: plan["predicted"]), ("levers", lambda plan: plan["levers"][0]),
                             ("fates", lambda plan: plan["fates"][0])):
            with self.subTest(where):
                self.refuses_edited(lambda plan: place(plan).update(colour=1), "colour", where if where != "step" else "")

    def test_missing_keys(self):
        for key in ("version", "step", "budget_bytes", "micro_batch", "predicted", "levers", "fates"):
            with self.subTest(key):
                self.refuses_edited(lambda plan: plan.pop(key), key, "missing")
        for outer, key in (("plain", "peak_bytes"), ("step", "torch")):
            with self.subTest(f"{outer}.{key}"):
                self.refuses_edited(lambda plan: plan[outer].pop(key), key, "missing")
        for key in ("regions", "recompute"):
            with self.subTest(f"fates.{key}"):
                self.refuses_edited(lambda plan: plan["fates"][0].pop(key), "fates", key, "missing")

    def test_values_of_the_wrong_kind(self):
        for key, value in (("version", "1"), ("version", 2), ("budget_bytes", "5MiB"),
                           ("budget_bytes", -1), ("budget_bytes", 2**63), ("micro_batch", 1.5), ("micro_batch", 0),
                           ("accumulation", "2"), ("predicted", []), ("step", []), ("bound_seconds", -1.0),
                           ("fates", "all")):
            with self.subTest(key=key, value=value):
                self.refuses_edited(lambda plan: plan.update({key: value}), key)
        self.refuses_edited(lambda plan: plan["predicted"].update(peak_bytes=-5), "predicted", "peak_bytes", "-5")

    def test_splits_that_are_not_the_batch(self):
        for micro_batch, accumulation in ((3, 1), (2, 1), (8, 1)):
            with self.subTest(micro_batch=micro_batch, accumulation=accumulation):
                self.refuses_edited(lambda plan: plan.update(micro_batch=micro_batch, accumulation=accumulation),
                                    f"micro_batch {micro_batch}", f"accumulation {accumulation}", "--batch-size 4")


class Fates(PlanFile):
    def test_regions(self):
        self.refuses_edited(lambda plan: self.fate(plan, "head")["regions"].append("layers.0"), "layers.0", "twice")
        self.refuses_edited(lambda plan: self.fate(plan, "layers.2")["regions"].remove("layers.2"), "layers.2")
        self.refuses_edited(lambda plan: self.fate(plan, "layers.0")["regions"].append("layers.9"), "layers.9")
        self.refuses_edited(lambda plan: self.fate(plan, "layers.0")["regions"].append(9), "fates", "regions", "9")

    def test_structures(self):
        for structure in ("xyz", "0123456789abcdeg", "-123456789abcdef"):
            with self.subTest(structure):
                self.refuses_edited(lambda plan: plan["fates"][0].update(structure=structure), "structure", "hexadecimal",
                                    f'"{structure}"')
        self.refuses_edited(lambda plan: self.fate(plan, "head").update(structure="0123456789abcdef"), "head",
                            "another model", "0123456789abcdef")

    def test_values(self):
        for value in ("x.y", "4.0 ", "-4.0 aten::mm", "99999999999999999999.0 aten::mm", None):
            with self.subTest(value):
                self.refuses_edited(lambda plan: self.fate(plan, "layers.0")["recompute"].append(value), "fates",
                                    "4.0 aten::mul.Tensor", json.dumps(value))
        for value in ("4.0 aten::cos", "99.0 aten::mm", "4.7 aten::mul.Tensor"):
            with self.subTest(value):
                self.refuses_edited(lambda plan: self.fate(plan, "layers.0")["recompute"].append(value), value,
                                    "layers.0", "no such value")


class OtherSteps(PlanFile):
    def test_other_options(self):
        def instead(option, value):
            return [value if before == option else word for before, word in zip(("", *RUN), RUN)]
        self.write("wide.json", json.dumps({**MODEL, "hidden_size": 128}))
        for arguments, says in ((instead("--seq-len", 32), ("seq_len 64", "32")),
                                (instead("--batch-size", 8), ("batch_size 4", "8")),
                                (instead("--model", "wide.json"), ("hidden_size",)),
                                ((*RUN, "--precision", "bf16"), ("precision", "fp32", "bf16")),
                                ((*RUN, "--optimizer", "sgd"), ("optimizer", "adamw", "sgd"))):
            with self.subTest(says[0]):
                self.refuses(*arguments, "--plan", "plan.json", says=["plan.json", "another step", *says])

    def test_another_machine(self):
        for key, value in (("torch", "1.0.0"), ("device", "cuda"), ("threads", 99)):
            with self.subTest(key):
                self.refuses_edited(lambda plan: plan["step"].update({key: value}), "another step", key, json.dumps(value))


class Edited(PlanFile):
    def run_edited(self, change):
        self.edited(change)
        document = self.json(*RUN, "--plan", "plan.json")
        self.assertEqual(document["predicted"]["peak_bytes"], document["measured"]["peak_bytes"])
        self.assertEqual(document["predicted"]["bytes"], document["measured"]["bytes"])
        self.assertIs(document["within_budget"], True)
        return document["measured"]["peak_bytes"]

    def test_one_value_more_is_kept(self):
        def change(plan):
            self.fate(plan, "layers.0")["recompute"].pop()
            plan["budget_bytes"] = 2**23
        self.assertGreater(self.run_edited(change), self.plan["predicted"]["peak_bytes"])

    def test_everything_is_kept(self):
        def change(plan):
            plan["budget_bytes"] = plan["plain"]["peak_bytes"]
            for fate in plan["fates"]:
                fate["recompute"] = []
        self.assertEqual(self.run_edited(change), self.plan["plain"]["peak_bytes"])

    def test_another_split_of_the_batch(self):
        self.assertLess(self.run_edited(lambda plan: plan.update(micro_batch=2, accumulation=2)),
                        self.plan["predicted"]["peak_bytes"])

    def test_the_name_of_the_model_is_only_a_name(self):
        self.run_edited(lambda plan: plan["step"].update(model="elsewhere/model.json"))
