"""Plans edited by hand: fates that cannot be meant are refused, what was changed with sense runs as predicted."""
import json

from plan_file import RUN, PlanFileTest


class Fates(PlanFileTest):
    def test_regions(self):
        self.refuses_edited(lambda plan: self.fate(plan, "head")["regions"].append("layers.0"), "layers.0", "twice")
        self.refuses_edited(lambda plan: self.fate(plan, "layers.2")["regions"].remove("layers.2"), "layers.2")
        self.refuses_edited(lambda plan: self.fate(plan, "layers.0")["regions"].append("layers.9"), "layers.9")
        self.refuses_edited(lambda plan: self.fate(plan, "layers.0")["regions"].append(9), "fates", "regions", "9")

    def test_structures(self):
        for structure in ("xyz", "0123456789abcdeg", "-123456789abcdef"):
            with self.subTest(structure):
                self.refuses_edited(lambda plan: plan["fates"][0].update(structure=structure), "structure",
                                    "hexadecimal", f'"{structure}"')
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

    def test_what_is_offloaded(self):
        for value in ("input", "input -1", "input 1.5", "inputs 0", 0):
            with self.subTest(value):
                self.refuses_edited(lambda plan: self.fate(plan, "layers.0")["offload"].append(value), "fates",
                                    json.dumps(value))
        for value in ("input 99", "4.0 aten::cos"):
            with self.subTest(value):
                self.refuses_edited(lambda plan: self.fate(plan, "layers.0")["offload"].append(value), "offloads",
                                    value, "no such value")
        self.refuses_edited(lambda plan: self.fate(plan, "layers.0")["recompute"].append("input 0"), "fates", "input 0")


class Edited(PlanFileTest):
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

    def test_what_comes_into_the_blocks_is_offloaded(self):
        def change(plan):
            for fate in plan["fates"]:
                if fate["regions"][0].startswith("layers."):
                    fate["offload"] = ["input 0"]
        self.assertLess(self.run_edited(change), self.plan["predicted"]["peak_bytes"])

    def test_another_split_of_the_batch(self):
        self.assertLess(self.run_edited(lambda plan: plan.update(micro_batch=2, accumulation=2)),
                        self.plan["predicted"]["peak_bytes"])

    def test_the_head_in_pieces(self):
        self.run_edited(lambda plan: plan.update(head_chunks=4))
        self.assertEqual(self.read("runs/model-1/config.json")["head_chunks"], 4)

    def test_the_name_of_the_model_is_only_a_name(self):
        self.run_edited(lambda plan: plan["step"].update(model="elsewhere/model.json"))
