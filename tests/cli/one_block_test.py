"""docs/one-block.md is true: its commands, run as they stand, print what it shows."""
import doctest
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from command import SNUG, CommandTest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
NEXT = "---- the next command"


class OneBlock(CommandTest):
    def test_the_commands_print_what_the_page_shows(self):
        blocks = re.findall(r"^```\n(\$ .*?)^```$", (DOCS / "one-block.md").read_text(), re.MULTILINE | re.DOTALL)
        shown = re.findall(r"^\$ (.*\n)((?:(?!\$ ).*\n)*)", "".join(blocks), re.MULTILINE)
        self.assertGreater(len(shown), 10)
        (self.folder / "docs").mkdir()
        shutil.copy(DOCS / "one-block.json", self.folder / "docs")
        path = f"{pathlib.Path(SNUG).parent}:{os.environ['PATH']}"
        run = subprocess.run(["bash", "-eu"], input=f"echo '{NEXT}'\n".join(command for command, _ in shown),
                             cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300,
                             env={**os.environ, "PATH": path, "XDG_CACHE_HOME": str(self.cache)})
        self.assertEqual(run.returncode, 0, run.stderr)
        rules = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        for (command, wanted), printed in zip(shown, run.stdout.split(NEXT + "\n"), strict=True):
            with self.subTest(command):
                example = doctest.Example(command, wanted)
                if not doctest.OutputChecker().check_output(wanted, printed, rules):
                    self.fail(doctest.OutputChecker().output_difference(example, printed, rules))


if __name__ == "__main__":
    unittest.main()
