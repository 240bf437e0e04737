"""Every C++ block of README.md and docs/ as one source, a function per block, so that what people copy compiles.

    snippets.py OUT FILE...
"""
import pathlib
import re
import sys

BLOCK = re.compile(r"^```cpp\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)
LEFT_OUT = re.compile(r"^\s*\.\.\.\n", re.MULTILINE)


def main():
    out, *files = map(pathlib.Path, sys.argv[1:])
    includes, functions = [], []
    for path in files:
        text = path.read_text()
        for block in BLOCK.finditer(text):
            includes += INCLUDE.findall(block[1])
            line = text.count("\n", 0, block.start(1)) + 1
            # Lines that are taken out leave empty ones, so that the compiler names the page's own.
            body = LEFT_OUT.sub("\n", INCLUDE.sub("\n", block[1]))
            functions.append(f'void block_{len(functions)}() {{\n#line {line} "{path}"\n{body}}}\n')
    if not functions:
        sys.exit("no C++ block in " + ", ".join(map(str, files)))
    text = '#include "tests/docs/prelude.h"\n\n' + "".join(dict.fromkeys(includes)) + "\n" + "\n".join(functions)
    if not out.exists() or out.read_text() != text:
        out.write_text(text)


if __name__ == "__main__":
    main()
